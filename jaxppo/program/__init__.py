"""The program around the learner: run directories, checkpoints, metrics tables, progress and the host loop.

Nothing in here changes a training number, and `import jaxppo` imports nothing from here.
"""
