import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

/** What programs do with Kafka's own client, against the broker named by the first argument. Ends with 0 if all is well. */
public class JavaClient {
    private static final Duration WAIT = Duration.ofSeconds(60);
    private static final int RECORDS = 200;
    private final String broker;
    private final String topic;
    private final String group;

    private JavaClient(String broker, String name) {
        this.broker = broker;
        this.topic = name;
        this.group = name + "-group";
    }

    public static void main(String[] args) throws Exception {
        JavaClient client = new JavaClient(args[0], args[1]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            client.topics(admin);
            client.produce(admin);
            client.offsets(admin);
            client.group(admin);
            client.groupAdministration(admin);
            client.refusals(admin);
            client.transactions(admin);
        }
        System.out.println("done");
    }

    private static void check(Object found, Object expected) {
        if (!Objects.equals(found, expected))
            throw new AssertionError("found " + found + ", expected " + expected);
    }

    private interface Call {
        void run() throws Exception;
    }

    private static void refused(Class<? extends Throwable> error, Call call) throws Exception {
        try {
            call.run();
        } catch (ExecutionException e) {
            check(e.getCause().getClass(), error);
            return;
        }
        throw new AssertionError("not refused with " + error);
    }

    private KafkaProducer<String, String> transactional(String id) {
        Map<String, Object> config = Map.of("bootstrap.servers", broker, "transactional.id", id);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    private void transactions(Admin admin) throws Exception {
        String written = topic + "-written", id = topic + "-id";
        admin.createTopics(List.of(new NewTopic(written, 2, (short) 1))).all().get();
        TopicPartition read = new TopicPartition(written, 1);
        List<String> expected = new ArrayList<>();
        try (var consumer = member(null, "RangeAssignor"); var producer = transactional(id)) {
            producer.initTransactions();
            check(admin.describeTransactions(List.of(id)).description(id).get().state(), TransactionState.EMPTY);
            for (int i = 0; i < 20; i++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(written, 0, null, "k" + i));
                producer.send(new ProducerRecord<>(written, 1, null, "v" + i));
                producer.sendOffsetsToTransaction(Map.of(read, new OffsetAndMetadata(i)), consumer.groupMetadata());
                if (i % 3 == 2) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    expected.add("v" + i);
                }
            }
            consumer.assign(List.of(read));
            check(consumer.committed(Set.of(read)).get(read).offset(), 19L);
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(written, 1, null, "of a zombie")).get();
            TransactionDescription open = admin.describeTransactions(List.of(id)).description(id).get();
            check(open.state(), TransactionState.ONGOING);
            check(open.topicPartitions(), Set.of(read));
            var ongoing = new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING));
            check(admin.listTransactions(ongoing).all().get().stream().anyMatch(
                each -> each.transactionalId().equals(id) && each.producerId() == open.producerId()), true);
            try (var newer = transactional(id)) {
                newer.initTransactions();
                try {
                    producer.commitTransaction();
                    throw new AssertionError("a zombie commits");
                } catch (ProducerFencedException | InvalidProducerEpochException e) {
                    // as it must be
                }
                newer.beginTransaction();
                newer.send(new ProducerRecord<>(written, 1, null, "of its successor"));
                newer.commitTransaction();
                expected.add("of its successor");
            }
        }
        Map<String, Object> config = Map.of("bootstrap.servers", broker, "isolation.level", "read_committed");
        try (var reader = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            reader.assign(List.of(read));
            reader.seekToBeginning(List.of(read));
            List<String> found = new ArrayList<>();
            long deadline = System.nanoTime() + WAIT.toNanos();
            while (found.size() < expected.size() && System.nanoTime() < deadline)
                reader.poll(Duration.ofMillis(100)).forEach(record -> found.add(record.value()));
            check(found, expected);
        }
        admin.deleteTopics(List.of(written)).all().get();
    }

    private void topics(Admin admin) throws Exception {
        NewTopic made = new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "99000"));
        CreateTopicsResult created = admin.createTopics(List.of(made));
        check(created.numPartitions(topic).get(), 3);
        check(created.config(topic).get().get("retention.ms").value(), "99000");
        TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        check(described.partitions().size(), 3);
        check(described.topicId(), created.topicId(topic).get());
        TopicCollection ids = TopicCollection.ofTopicIds(List.of(described.topicId()));
        check(admin.describeTopics(ids).allTopicIds().get().get(described.topicId()).name(), topic);
        check(admin.describeCluster().nodes().get().size(), 1);
        check(admin.listTopics().names().get().contains(topic), true);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp set = new AlterConfigOp(new ConfigEntry("segment.ms", "70000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
        Config config = admin.describeConfigs(List.of(resource), new DescribeConfigsOptions().includeSynonyms(true)
            .includeDocumentation(true)).all().get().get(resource);
        check(config.get("segment.ms").value(), "70000");
        check(config.get("segment.ms").source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG);
        check(config.get("segment.ms").synonyms().size() > 1, true);
        check(config.get("segment.ms").documentation().isEmpty(), false);
        int node = described.partitions().get(0).leader().id();
        check(admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node).size(), 1);
        admin.describeFeatures().featureMetadata().get();
    }

    private void produce(Admin admin) throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            Map<String, Object> config = Map.of("bootstrap.servers", broker, "compression.type", codec, "linger.ms", 5);
            try (Producer<String, String> producer =
                    new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
                List<java.util.concurrent.Future<RecordMetadata>> sent = new ArrayList<>();
                for (int i = 0; i < RECORDS; i++)
                    sent.add(producer.send(new ProducerRecord<>(topic, i % 3, 1_700_000_000_000L + i, "k" + i, codec + i,
                        List.of(new RecordHeader("h", null)))));
                long last = -1;
                for (int i = 0; i < RECORDS; i += 3) {
                    long offset = sent.get(i).get().offset();
                    check(offset > last, true);
                    last = offset;
                }
            }
        }
        TopicPartition first = new TopicPartition(topic, 0);
        check(admin.describeProducers(List.of(first)).partitionResult(first).get().activeProducers().size(), 5);
    }

    private void offsets(Admin admin) throws Exception {
        TopicPartition first = new TopicPartition(topic, 0);
        check(admin.listOffsets(Map.of(first, OffsetSpec.earliest())).partitionResult(first).get().offset(), 0L);
        check(admin.listOffsets(Map.of(first, OffsetSpec.latest())).partitionResult(first).get().offset(), 5 * 67L);
        check(admin.listOffsets(Map.of(first, OffsetSpec.maxTimestamp())).partitionResult(first).get().timestamp(),
            1_700_000_000_198L);
        check(admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(1))).lowWatermarks().get(first).get()
            .lowWatermark(), 1L);
    }

    private KafkaConsumer<String, String> member(String instance, String assignor) {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", broker, "group.id", group,
            "auto.offset.reset", "earliest", "enable.auto.commit", false, "heartbeat.interval.ms", 200,
            "partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor));
        if (instance != null)
            config.put("group.instance.id", instance);
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    private void group(Admin admin) throws Exception {
        Set<String> values = new HashSet<>();
        try (KafkaConsumer<String, String> one = member("one", "CooperativeStickyAssignor");
                KafkaConsumer<String, String> two = member("two", "CooperativeStickyAssignor")) {
            one.subscribe(List.of(topic));
            two.subscribe(List.of(topic));
            long deadline = System.nanoTime() + WAIT.toNanos();
            // A member commits nothing of a partition whose position it does not know yet.
            while (values.size() < 5 * RECORDS - 1 || one.assignment().isEmpty() || two.assignment().isEmpty()
                    || committed(admin) < 3) {
                check(System.nanoTime() < deadline, true);
                for (KafkaConsumer<String, String> each : List.of(one, two)) {
                    each.poll(Duration.ofMillis(50)).forEach(record -> values.add(record.value()));
                    try {
                        each.commitSync();
                    } catch (RebalanceInProgressException e) {
                        // read again after the rebalance
                    }
                }
            }
            check(one.assignment().size() + two.assignment().size(), 3);
            ConsumerGroupDescription described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            check(described.members().size(), 2);
            check(described.partitionAssignor(), "cooperative-sticky");
        }
        check(values.size(), 5 * RECORDS - 1);
        // Static members stay until they are removed or their session ends.
        check(admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size(), 2);
        admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(
            List.of(new MemberToRemove("one"), new MemberToRemove("two")))).all().get();
        check(admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size(), 0);
    }

    /** The number of partitions with a committed offset. */
    private int committed(Admin admin) throws Exception {
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().size();
    }

    private void groupAdministration(Admin admin) throws Exception {
        TopicPartition first = new TopicPartition(topic, 0);
        check(committed(admin), 3);
        admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(7, "seven"))).all().get();
        OffsetAndMetadata found = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(first);
        check(found.offset() + found.metadata(), "7seven");
        try (KafkaConsumer<String, String> reader = member(null, "RangeAssignor")) {
            reader.assign(List.of(first));
            check(reader.poll(WAIT).iterator().next().offset(), 7L);
            check(reader.beginningOffsets(List.of(first)).get(first), 1L);
            check(reader.offsetsForTimes(Map.of(first, 1_700_000_000_001L)).get(first).offset(), 1L);
            check(reader.committed(Set.of(first)).get(first).offset(), 7L);
            check(reader.partitionsFor(topic).size(), 3);
        }
        admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get();
        admin.deleteConsumerGroups(List.of(group)).all().get();
    }

    private void refusals(Admin admin) throws Exception {
        refused(GroupIdNotFoundException.class, () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        refused(TopicExistsException.class,
            () -> admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get());
        refused(InvalidReplicationFactorException.class,
            () -> admin.createTopics(List.of(new NewTopic(topic + "x", 1, (short) 5))).all().get());
        refused(InvalidTopicException.class,
            () -> admin.createTopics(List.of(new NewTopic("a/b", 1, (short) 1))).all().get());
        refused(UnknownTopicOrPartitionException.class, () -> admin.deleteTopics(List.of(topic + "x")).all().get());
        refused(SecurityDisabledException.class, () -> admin.describeAcls(
            org.apache.kafka.common.acl.AclBindingFilter.ANY).values().get());
        admin.deleteTopics(List.of(topic)).all().get();
    }
}
