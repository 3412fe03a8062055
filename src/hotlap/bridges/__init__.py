"""Exact, memory-safe steps inside other people's trainers; each module here needs its trainer's package."""
