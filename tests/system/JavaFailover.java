import java.util.*;
import java.util.concurrent.*;
import java.util.zip.CRC32;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;

/** Sends so many records to partition 0 of a topic, and writes a line with number and offset for each that is acknowledged. */
public class JavaFailover {
    public static void main(String[] args) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0], "acks", "all", "linger.ms", 1);
        int records = Integer.parseInt(args[2]);
        List<String> failures = Collections.synchronizedList(new ArrayList<>());
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int i = 0; i < records; i++) {
                int number = i;
                producer.send(new ProducerRecord<>(args[1], 0, null, payload("j", number)), (metadata, error) -> {
                    if (error != null) {
                        failures.add(number + ": " + error);
                    } else {
                        synchronized (System.out) {
                            System.out.println(number + " " + metadata.offset());
                            System.out.flush();
                        }
                    }
                });
                Thread.sleep(1);
            }
        }
        if (!failures.isEmpty()) {
            System.err.println(failures);
            System.exit(1);
        }
    }

    private static byte[] payload(String producer, int number) {
        CRC32 crc = new CRC32();
        String head = producer + ":" + number + ":";
        crc.update(head.getBytes());
        return (head + String.format("%08x:", crc.getValue())).getBytes();
    }
}
