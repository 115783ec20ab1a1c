"""The names of all keys of Apache Kafka 0.9.0.1, from its own definitions."""

from __future__ import annotations

_BROKER = """
advertised.host.name advertised.listeners advertised.port authorizer.class.name auto.create.topics.enable
auto.leader.rebalance.enable background.threads broker.id broker.id.generation.enable compression.type
connections.max.idle.ms controlled.shutdown.enable controlled.shutdown.max.retries
controlled.shutdown.retry.backoff.ms controller.socket.timeout.ms default.replication.factor delete.topic.enable
fetch.purgatory.purge.interval.requests group.max.session.timeout.ms group.min.session.timeout.ms host.name
inter.broker.protocol.version leader.imbalance.check.interval.seconds leader.imbalance.per.broker.percentage
listeners log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size log.cleaner.delete.retention.ms log.cleaner.enable
log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
log.cleaner.min.cleanable.ratio log.cleaner.threads log.cleanup.policy log.dir log.dirs log.flush.interval.messages
log.flush.interval.ms log.flush.offset.checkpoint.interval.ms log.flush.scheduler.interval.ms
log.index.interval.bytes log.index.size.max.bytes log.preallocate log.retention.bytes
log.retention.check.interval.ms log.retention.hours log.retention.minutes log.retention.ms log.roll.hours
log.roll.jitter.hours log.roll.jitter.ms log.roll.ms log.segment.bytes log.segment.delete.delay.ms
max.connections.per.ip max.connections.per.ip.overrides message.max.bytes metric.reporters metrics.num.samples
metrics.sample.window.ms min.insync.replicas num.io.threads num.network.threads num.partitions
num.recovery.threads.per.data.dir num.replica.fetchers offset.metadata.max.bytes offsets.commit.required.acks
offsets.commit.timeout.ms offsets.load.buffer.size offsets.retention.check.interval.ms offsets.retention.minutes
offsets.topic.compression.codec offsets.topic.num.partitions offsets.topic.replication.factor
offsets.topic.segment.bytes port principal.builder.class producer.purgatory.purge.interval.requests
queued.max.requests quota.consumer.default quota.producer.default quota.window.num quota.window.size.seconds
replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.wait.max.ms
replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms replica.socket.receive.buffer.bytes
replica.socket.timeout.ms request.timeout.ms reserved.broker.max.id sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor security.inter.broker.protocol
socket.receive.buffer.bytes socket.request.max.bytes socket.send.buffer.bytes ssl.cipher.suites ssl.client.auth
ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.key.password ssl.keymanager.algorithm
ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider ssl.trustmanager.algorithm
ssl.truststore.location ssl.truststore.password ssl.truststore.type unclean.leader.election.enable zookeeper.connect
zookeeper.connection.timeout.ms zookeeper.session.timeout.ms zookeeper.set.acl zookeeper.sync.time.ms
"""
_TOPIC = """
cleanup.policy compression.type delete.retention.ms file.delete.delay.ms flush.messages flush.ms
index.interval.bytes max.message.bytes min.cleanable.dirty.ratio min.insync.replicas preallocate retention.bytes
retention.ms segment.bytes segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
"""

BROKER_KEYS = frozenset(_BROKER.split())
TOPIC_KEYS = frozenset(_TOPIC.split())
