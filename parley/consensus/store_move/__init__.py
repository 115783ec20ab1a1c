"""The move of a running cluster from one coordination store to another, and the record that says which is in charge."""
