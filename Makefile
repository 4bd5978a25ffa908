# Every target is a script; `make help` lists them. Variables given to make (NODE=7000) reach them by themselves;
# nothing is exported here, since that would also pass on, as empty, what nobody named.
.PHONY: sim-scale compatibility-page book packages clients-page help build bench-sentinel up up-sentinel down-sentinel status kill restart down test verify deny fmt memcheck fuzz soak bench bench-memory bench-snapshot bench-expiry bench-bystanders bench-moves bench-loading bench-aof bench-threads bench-eviction bench-instructions bench-failover bench-connections configuration-page chaos
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' Makefile

build: ## Build the server and the binary for testing in release mode
	@scripts/build

up: ## Start a cluster of six nodes here (PORT=7000 is the first port)
	@scripts/up

up-sentinel: ## Start a master, two replicas and three sentinels here (PORT=7010 is the first port)
	@scripts/sentinel-group up

down-sentinel: ## Stop them and remove their data
	@scripts/sentinel-group down

status: ## Show its nodes, slots and replicas, and the sentinel group if it stands
	@scripts/status

kill: ## Kill a node and watch its replica take over (NODE=7000)
	@scripts/kill

restart: ## Start a node again with its data (NODE=7000)
	@scripts/restart

down: ## Stop the cluster and remove its data (KEEP=1 leaves it)
	@scripts/down

test: ## Install what the tests need, then run all of them
	@scripts/test

book: ## Build the book (docs/book) into target/book
	@scripts/book

packages: ## Make the .deb and .rpm in target/package, install and remove both in a copy of this system, check the Helm chart
	@scripts/package
	@scripts/packages-installed
	@scripts/chart

verify: ## Look at format, lints and scripts; change nothing
	@scripts/verify

fmt: ## Format the Rust code
	@cargo fmt --all

deny: ## Licences, doubled versions and known faults of dependencies (deny.toml; needs cargo-deny)
	@scripts/deny

memcheck: ## Run the tests of the unsafe modules under valgrind
	@scripts/memcheck

fuzz: ## Look for inputs that show a fault (TARGET=rdb, SECONDS_EACH=60)
	@scripts/fuzz

soak: ## What takes too long for every test run: a hundred kills under load, longer fuzzing, more seeds (SOAK_SECONDS=600)
	@scripts/soak

sim-scale: ## Measure large clusters in the simulator: bytes on the bus, and failovers (SCALE=1000:1, nodes:deaths)
	@cargo run --release --locked -p sim -- --scale $(or $(SCALE),100:24,300:74,1000:1)

chaos: ## Break servers while clients write, and say what became of their data (SEED=1, SECONDS_EACH=60, MODE, SERVER, BESIDE)
	@scripts/chaos

bench: ## CPU per command, beside redis-server and valkey-server if they are here
	@scripts/bench
	@scripts/bench-families

bench-memory: ## Bytes per key, beside them (SCALE=0.1 for less data)
	@scripts/bench-memory

bench-snapshot: ## What a snapshot costs under load, beside them (KEYS, FIELDS, RUNS)
	@scripts/bench-snapshot

bench-expiry: ## A million keys due in one second: who waits, and how long they stay (KEYS, RUNS)
	@scripts/bench-expiry

bench-bystanders: ## Who waits for one client's slow command, beside them (RUNS, SCALE, WORKERS)
	@scripts/bench-bystanders

bench-moves: ## How long slots take to move, and how long their clients wait, beside them (RUNS, SLOTS, KEYS)
	@scripts/bench-moves

configuration-page: ## Write docs/CONFIGURATION.md from the table of parameters
	@WRITE_CONFIGURATION_PAGE=1 cargo test -q -p config the_page_says_what_the_tables_say

compatibility-page: ## Write docs/compatibility.md and docs/differences.md from what servers and the tester's tables say
	@WRITE_COMPATIBILITY=1 cargo test -q -p differential --test coverage the_page_of

bench-loading: ## How long loading an RDB takes, beside them (KEYS, HASHES, RUNS)
	@scripts/bench-loading

bench-aof: ## What an append-only file costs: CPU, throughput under always, loading, a rewrite under load, beside Valkey
	@scripts/bench-aof

bench-connections: ## Memory of idle connections, and who waits for a channel of 10,000 (CONNECTIONS, MESSAGES)
	@scripts/bench-connections

bench-threads: ## Two workers beside one, in process
	@scripts/bench-threads

bench-eviction: ## What a cache finds under each policy, beside a real Redis with as many keys (EVICTION_SECONDS)
	@scripts/bench-eviction

bench-instructions: ## Instructions per command; fails at 5 % over docs/instructions.tsv
	@scripts/bench-instructions

bench-sentinel: ## Time failovers under sentinels (RUNS=10; SERVERS=redoubt)
	@scripts/bench-sentinel

bench-failover: ## Time from a master's death to the next accepted write (REDOUBT names another server)
	@scripts/bench-failover

clients-page: ## Run the client libraries' tests and write what they found to docs/clients.md
	@scripts/clients-page
