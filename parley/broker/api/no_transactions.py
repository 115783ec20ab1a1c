"""What a client hears that wants transactions, which this broker does not offer.

The protocol has no code for it. Of those that FindCoordinator may answer, this one ends the attempt at once in every
client, and is the one with which they show the message: for UNSUPPORTED_VERSION and most others librdkafka asks again
until its time is over, and for TRANSACTIONAL_ID_AUTHORIZATION_FAILED the Java client puts its own words in place of it.
"""

from __future__ import annotations

from parley.protocol.errors import ErrorCode, KafkaError


def no_transactions() -> KafkaError:
    """The refusal, to be raised or answered."""
    return KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Transactions are not offered by this broker yet.")
