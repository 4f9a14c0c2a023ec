"""The ledger of the certification logs that the field has released, and its pages."""
