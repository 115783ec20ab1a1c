"""The Kafka wire protocol: messages, record batches, errors, a sans-IO connection and a thin asyncio client.

Of Parley's packages, it imports only ``parley.configuration``. Only ``parley.protocol.security`` reads files.
"""
