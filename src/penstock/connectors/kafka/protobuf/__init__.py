"""Protobuf messages and Arrow columns: types from classes, descriptor sets and `.proto` text, and both directions."""
