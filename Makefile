# Thin names for scripts/dev, which does the work (and works without make).

.PHONY: run test setup build lint doc clean-cache

# Starts the broker, all three runtimes built in: make run ARGS="--runtime tokio --shards 2"
run:
	@scripts/dev run $(ARGS)

# The whole test-suite, both build configurations.
test:
	@scripts/dev test

# What `run` and `test` do first by themselves: Debian packages, Python client.
setup:
	@scripts/dev setup

# Both release programs.
build:
	@scripts/dev build

# Format and clippy, both build configurations.
lint:
	@scripts/dev lint

# API documentation of all rooms.
doc:
	@scripts/dev doc

# Removes everything kept between runs.
clean-cache:
	@scripts/dev clean-cache
