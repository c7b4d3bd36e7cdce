"""What a training needs of memory, links and processors, counted before it starts. Nothing here imports torch."""
