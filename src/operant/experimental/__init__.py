"""What few people want, where it is in nobody's way: packages reach it by name, and import nothing from here.

A3C (`operant train a3c`), vine sampling (`sampling="vine"` of TRPO), and the natural gradient of a language model
(`step="trpo"` of RLHF). All of it is tested like the rest; its interfaces may change in any version.
"""
