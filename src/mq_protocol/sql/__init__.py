"""The two small languages that users write: schemas (`ddl`) and filters over rows (`row_filter`)."""
