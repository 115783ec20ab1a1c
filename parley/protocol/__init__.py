"""The Kafka wire protocol: messages, record batches, errors, a sans-IO connection and a thin asyncio client.

Nothing here opens a file, knows a broker or imports another package of Parley.
"""
