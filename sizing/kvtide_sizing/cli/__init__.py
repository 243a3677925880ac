"""The `kvtide` command: the only part of sizing that prints, and the only one that imports click, rich and yaml."""
