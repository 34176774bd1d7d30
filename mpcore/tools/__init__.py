"""What is built on the core: comparing, explaining, profiling, diagnosing, converting."""
