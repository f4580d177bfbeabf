"""Runs that wait for people: their record, its seal, and the ledger of the seals that were used."""
