"""Who may do what: principals and the operations of Kafka's access control model."""
