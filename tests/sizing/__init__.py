"""The planner: its expected values come from published model configurations, or are worked out beside the row."""
