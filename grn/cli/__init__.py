"""The command line: `grn train`, `grn predict`, `grn export`, `grn evaluate`."""
