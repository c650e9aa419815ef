"""Rarely used algorithms, apart from the others: packages refer to them by name and import nothing from here.

A3C (`operant train a3c`), vine sampling (`sampling="vine"` of TRPO), and the natural gradient of a language model
(`step="trpo"` of RLHF). They are tested like all others, but their interfaces may change in any version.
"""
