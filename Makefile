# Every target is a script; `make help` lists them. make passes variables from its command line (NODE=7000) to the scripts;
# an `export` here would also pass unset variables as empty ones.
.PHONY: sim-scale compatibility-page book packages clients-page help build bench-sentinel up up-sentinel down-sentinel status kill restart down test verify deny fmt memcheck fuzz soak bench bench-memory bench-snapshot bench-expiry bench-bystanders bench-moves bench-loading bench-aof bench-threads bench-eviction bench-instructions bench-failover bench-connections configuration-page chaos
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' Makefile

build: ## Build the server and the test program in release mode
	@scripts/build

up: ## Start a cluster of six nodes here (PORT=7000 is the first port)
	@scripts/up

up-sentinel: ## Start a master, two replicas and three sentinels here (PORT=7010 is the first port)
	@scripts/sentinel-group up

down-sentinel: ## Stop the sentinel group and remove its data
	@scripts/sentinel-group down

status: ## Show the nodes of the cluster, and the sentinel group
	@scripts/status

kill: ## Kill a node and watch its replica take over (NODE=7000)
	@scripts/kill

restart: ## Restart a node with its data (NODE=7000)
	@scripts/restart

down: ## Stop the cluster and remove its data (KEEP=1 keeps it)
	@scripts/down

test: ## Install what the tests need and run all tests
	@scripts/test

book: ## Build the book (docs/book) into target/book
	@scripts/book

packages: ## Build .deb and .rpm in target/package, test their installation, check the Helm chart
	@scripts/package
	@scripts/packages-installed
	@scripts/chart

verify: ## Check format, lints and scripts
	@scripts/verify

fmt: ## Format the Rust code
	@cargo fmt --all

deny: ## Check licences, duplicate versions and advisories of dependencies (needs cargo-deny)
	@scripts/deny

memcheck: ## Run the tests of the unsafe modules under valgrind
	@scripts/memcheck

fuzz: ## Run the fuzz targets (TARGET=rdb, SECONDS_EACH=60)
	@scripts/fuzz

soak: ## Run long tests: a hundred kills under load, fuzzing, many simulator seeds (SOAK_SECONDS=600)
	@scripts/soak

sim-scale: ## Measure large clusters in the simulator (SCALE=1000:1, nodes:failures)
	@cargo run --release --locked -p sim -- --scale $(or $(SCALE),100:24,300:74,1000:1)

chaos: ## Inject faults under load and check for lost writes (SEED=1, SECONDS_EACH=60, MODE, SERVER, BESIDE)
	@scripts/chaos

bench: ## CPU per command, compared with redis-server and valkey-server if installed
	@scripts/bench
	@scripts/bench-families

bench-memory: ## Bytes per key (SCALE=0.1 for less data)
	@scripts/bench-memory

bench-snapshot: ## Cost of a snapshot under load (KEYS, FIELDS, RUNS)
	@scripts/bench-snapshot

bench-expiry: ## A million keys that expire in one second (KEYS, RUNS)
	@scripts/bench-expiry

bench-bystanders: ## Latency of other clients during slow commands (RUNS, SCALE, WORKERS)
	@scripts/bench-bystanders

bench-moves: ## Duration of slot migrations and latency of their clients (RUNS, SLOTS, KEYS)
	@scripts/bench-moves

configuration-page: ## Generate docs/CONFIGURATION.md
	@WRITE_CONFIGURATION_PAGE=1 cargo test -q -p config configuration_page_is_up_to_date

compatibility-page: ## Generate docs/compatibility.md and docs/differences.md
	@WRITE_COMPATIBILITY=1 cargo test -q -p differential --test coverage compatibility_page_of

bench-loading: ## Time to load an RDB file (KEYS, HASHES, RUNS)
	@scripts/bench-loading

bench-aof: ## Cost of the append-only file: CPU, throughput, loading, rewrite
	@scripts/bench-aof

bench-connections: ## Memory of idle connections, and a channel with 10,000 subscribers (CONNECTIONS, MESSAGES)
	@scripts/bench-connections

bench-threads: ## Two worker threads compared with one
	@scripts/bench-threads

bench-eviction: ## Hit rate of each eviction policy, compared with Redis (EVICTION_SECONDS)
	@scripts/bench-eviction

bench-instructions: ## Instructions per command; fails if 5 % above docs/instructions.tsv
	@scripts/bench-instructions

bench-sentinel: ## Failover time with sentinels (RUNS=10; SERVERS=redoubt)
	@scripts/bench-sentinel

bench-failover: ## Failover time in a cluster (REDOUBT names another server)
	@scripts/bench-failover

clients-page: ## Test the client libraries and generate docs/clients.md
	@scripts/clients-page
