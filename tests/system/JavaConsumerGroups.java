import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.*;

/** Groups of the consumer protocol (KIP-848), with Kafka's own client. Arguments: bootstrap servers, a name. */
public class JavaConsumerGroups {
    static final long PATIENCE_MS = 120_000;
    static String servers;
    static String topic;

    public static void main(String[] args) throws Exception {
        servers = args[0];
        topic = args[1];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.createTopics(List.of(new NewTopic(topic, 4, (short) 1))).all().get();
            shared(admin);
            pattern();
            migration(admin);
        }
        System.out.println("done");
    }

    static KafkaConsumer<String, String> consumer(String group, String protocol) {
        Properties config = new Properties();
        config.put("bootstrap.servers", servers);
        config.put("group.id", group);
        config.put("group.protocol", protocol);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    static void produce(int from, int to) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                Map.of("bootstrap.servers", servers), new StringSerializer(), new StringSerializer())) {
            for (int i = from; i < to; i++) producer.send(new ProducerRecord<>(topic, i % 4, null, "" + i)).get();
        }
    }

    static int distinct(List<String> read) {
        return new HashSet<>(read).size();
    }

    interface Reached { boolean now() throws Exception; }

    /** Polls all of them until what is awaited is so; collects the values that they read, and commits. */
    static void until(Reached reached, List<String> read, List<KafkaConsumer<String, String>> all) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!reached.now()) {
            if (System.currentTimeMillis() > end) throw new AssertionError("not reached; read " + read);
            for (KafkaConsumer<String, String> each : all) {
                for (ConsumerRecord<String, String> record : each.poll(Duration.ofMillis(50))) read.add(record.value());
                try {
                    each.commitSync();
                } catch (CommitFailedException | RebalanceInProgressException e) {
                    // the group has just rebalanced: the records are read again, perhaps by the other consumer
                }
            }
        }
    }

    static void check(Object found, Object expected) {
        if (!Objects.equals(found, expected)) throw new AssertionError("found " + found + ", expected " + expected);
    }

    static void shared(Admin admin) throws Exception {
        String group = topic + "-shared";
        List<String> read = new ArrayList<>();
        produce(0, 20);
        try (var first = consumer(group, "consumer"); var second = consumer(group, "consumer")) {
            first.subscribe(List.of(topic));
            until(() -> distinct(read) >= 20, read, List.of(first));
            second.subscribe(List.of(topic));
            until(() -> first.assignment().size() == 2 && second.assignment().size() == 2, read, List.of(first, second));
            produce(20, 40);
            until(() -> distinct(read) >= 40, read, List.of(first, second));
            check(type(admin, group), GroupType.CONSUMER);
            until(() -> {
                ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
                return found.members().size() == 2 && found.groupState() == GroupState.STABLE;
            }, read, List.of(first, second));
            second.unsubscribe();
            until(() -> first.assignment().size() == 4, read, List.of(first));
        }
        check(distinct(read), 40);
        check(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().size(), 4);
    }

    static void pattern() throws Exception {
        List<String> read = new ArrayList<>();
        try (var one = consumer(topic + "-pattern", "consumer")) {
            one.subscribe(new SubscriptionPattern(topic + "|none"));
            until(() -> distinct(read) >= 40, read, List.of(one));
        }
    }

    static void migration(Admin admin) throws Exception {
        String group = topic + "-moving";
        List<String> read = new ArrayList<>();
        try (var old = consumer(group, "classic")) {
            old.subscribe(List.of(topic));
            until(() -> distinct(read) >= 40, read, List.of(old));
            try (var modern = consumer(group, "consumer")) {
                modern.subscribe(List.of(topic));
                until(() -> old.assignment().size() == 2 && modern.assignment().size() == 2, read, List.of(old, modern));
                check(type(admin, group), GroupType.CONSUMER);
                produce(40, 60);
                until(() -> distinct(read) >= 60, read, List.of(old, modern));
            }
            until(() -> old.assignment().size() == 4, read, List.of(old));
            check(type(admin, group), GroupType.CLASSIC);
            produce(60, 64);
            until(() -> distinct(read) >= 64, read, List.of(old));
        }
        check(distinct(read), 64);
    }

    static GroupType type(Admin admin, String group) throws Exception {
        return admin.describeConsumerGroups(List.of(group)).all().get().get(group).type();
    }
}
