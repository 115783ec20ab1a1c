"""The Kafka wire protocol: messages, record batches, errors, a sans-IO connection and a thin asyncio client.

Nothing here opens a file. Of Parley's packages, it imports only ``parley.configuration``.
"""
