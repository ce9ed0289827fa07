"""The store: Redis or Valkey. Nothing outside this package knows redis-py or django-redis."""
