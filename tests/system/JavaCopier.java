import java.io.FileInputStream;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/**
 * Copies a topic to another one in transactions that commit the group's offsets, until it is killed.
 *
 * Arguments: a file with the properties of clients, the source, the target, the group, its protocol, the transactional id.
 */
public class JavaCopier {
    private static final int RECORDS_MAX = 20;

    public static void main(String[] args) throws Exception {
        Properties shared = new Properties();
        try (var file = new FileInputStream(args[0])) {
            shared.load(file);
        }
        Properties consuming = new Properties();
        consuming.putAll(shared);
        consuming.putAll(Map.of("group.id", args[3], "group.protocol", args[4], "auto.offset.reset", "earliest",
            "enable.auto.commit", "false", "isolation.level", "read_committed", "max.poll.records", RECORDS_MAX));
        Properties producing = new Properties();
        producing.putAll(shared);
        producing.putAll(Map.of("transactional.id", args[5], "transaction.timeout.ms", "10000"));
        try (var consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[1]));
            while (true) {
                try (var producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer())) {
                    producer.initTransactions();
                    while (copy(consumer, producer, args[2])) {}
                }
            }
        }
    }

    /** Copies some records in one transaction. Returns false if there must be another producer. */
    private static boolean copy(
            KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer, String target) {
        var records = consumer.poll(Duration.ofMillis(200));
        if (records.isEmpty())
            return true;
        producer.beginTransaction();
        try {
            for (var each : records)
                producer.send(new ProducerRecord<>(target, each.partition(), each.key(), each.value()));
            producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
            producer.commitTransaction();
            return true;
        } catch (AuthorizationException | AuthenticationException refused) {
            throw refused;
        } catch (KafkaException failed) {
            System.out.println("again: " + failed);
            rewind(consumer);
            return false;  // closing the producer leaves the transaction to its successor, which aborts it
        }
    }

    private static void rewind(KafkaConsumer<String, String> consumer) {
        var committed = consumer.committed(consumer.assignment());
        for (var partition : consumer.assignment()) {
            var offset = committed.get(partition);
            if (offset == null)
                consumer.seekToBeginning(List.of(partition));
            else
                consumer.seek(partition, offset);
        }
    }
}
