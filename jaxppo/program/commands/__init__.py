"""One file a command of `jaxppo`. Each has `run(arguments)`, which does the work; UserError says why it cannot."""
