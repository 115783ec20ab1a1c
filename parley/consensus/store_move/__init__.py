"""Moving a running cluster from one coordination store to another, and the record of which store is in charge."""
