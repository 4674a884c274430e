# Needs Rust (rustup reads rust-toolchain.toml) and Go. The first command that
# needs the test cluster builds it from Go modules (about 5 minutes, then cached)
# and installs the Debian packages that tests/cluster/build.sh names. `make test`
# also makes a Python environment for tests/gpusim/clients.sh, beside that cache.

.DEFAULT_GOAL := help
.NOTPARALLEL: # Go and Rust builds beside each other only slow each other down
.PHONY: help demo demo-down test test-oldest chaos admission hold bench fuzz reference screens newcomer lint cluster binaries build

CARGO_TARGET_DIR ?= target
DEMO := $(CARGO_TARGET_DIR)/debug/demo
# The flags of tests/cluster/build.sh, so that vet finds what it compiled. Not for
# kubebox: it only starts upstream commands, and vet would read all of Kubernetes.
GO_VET := CGO_ENABLED=0 go vet -trimpath -gcflags=all=-dwarf=false

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: cluster binaries ## Start a real cluster with simulated GPUs and run the examples in it
	@$(DEMO) up

demo-down: ## Remove everything that `make demo` started
	@test -x $(DEMO) || cargo build --workspace --locked
	@$(DEMO) down

newcomer: ## Time a newcomer's path in a fresh clone: make demo, change a value, see it
	tests/e2e/newcomer.sh

test: cluster lint build ## Everything that must hold: lints, then all tests on a real cluster
	cargo test --workspace --locked --no-fail-fast

# What of Kubernetes we rely on and is not of its API: the Binding and its preconditions, what
# wakes a pending pod, the kubelet's checkpoint and calls. README.md says what the kubelet of
# then does otherwise.
test-oldest: cluster build ## Binding, nudge and checkpoint on the oldest Kubernetes that the chart installs on
	ALIQUOT_KUBERNETES=oldest cargo test --workspace --locked --test control_plane
	ALIQUOT_KUBERNETES=oldest cargo test --workspace --locked --test node the_example_pod_gets_its_share
	ALIQUOT_KUBERNETES=oldest cargo test --workspace --locked --test node a_container_survives_plugin_restarts
	ALIQUOT_KUBERNETES=oldest cargo test --workspace --locked --test node a_pod_created_while_an_agent_restarts

chaos: cluster build ## Kill every process of two scheduler replicas at every fail-point, 10,000 pods
	ALIQUOT_CHAOS_PODS=5000 cargo test --workspace --locked --test chaos

admission: cluster build ## 200 GPU pods a second for 10 minutes, one of two webhooks killed at random, certificates new each minute
	cargo build --release --quiet --locked -p aliquot-webhook
	ALIQUOT_ADMISSION=long cargo test --workspace --locked --test admission -- --nocapture

hold: ## A million random allocations at the limit, and a thousand kills, against the simulator's count
	cargo build --locked -p aliquot-limiter -p aliquot-gpusim -p aliquot-gpusim-cuda
	ALIQUOT_CHURN=long cargo test --locked -p aliquot-limiter-tests --test churn -- --nocapture

bench: cluster ## Measure what docs/SPECIFICATION.md promises, in release builds
	cargo build --release --quiet --locked -p aliquot-scheduler -p aliquot-device-plugin -p aliquot-monitor -p aliquot-performance
	cargo run --release --quiet --locked -p aliquot-performance
	cargo build --release --quiet --locked -p aliquot-limiter -p aliquot-gpusim -p aliquot-gpusim-cuda
	cargo run --release --quiet --locked -p aliquot-limiter-tests

FUZZ_MINUTES ?= 1
fuzz: ## Look for inputs that break a property, FUZZ_MINUTES for each target (nightly Rust)
	tests/fuzz/run.sh $(FUZZ_MINUTES)

reference: ## Write docs/reference/the reference pages that are made from the code
	UPDATE=1 cargo test --quiet --locked -p aliquot-chart --test reference
	UPDATE=1 cargo test --quiet --locked -p aliquot-cli --test reference
	UPDATE=1 cargo test --quiet --locked -p aliquot-limiter --lib the_reference_of_driver_calls_is_made_from_the_table
	UPDATE=1 cargo test --quiet --locked -p aliquot-scheduler --lib the_reference_of_metrics_is_made_from_the_table
	UPDATE=1 cargo test --quiet --locked -p aliquot-monitor --lib the_reference_of_the_monitors_metrics_is_made_from_the_table
	UPDATE=1 cargo test --quiet --locked -p aliquot-device-plugin --lib the_reference_of_xids_is_made_from_the_catalogue

screens: build ## Write the pictures in docs/screens anew, by the tests
	UPDATE=1 cargo test --workspace --locked --test life
	UPDATE=1 cargo test --workspace --locked --test page

lint: ## Formatting and lints of the Rust and Go code
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@rustup target list --installed | grep -qx aarch64-unknown-linux-gnu || rustup target add aarch64-unknown-linux-gnu
	cargo check --locked -p aliquot-limiter -p aliquot-hook --target aarch64-unknown-linux-gnu
	@unformatted=$$(gofmt -l tests/cluster/kubernetes tests/cluster/oldest) && test -z "$$unformatted" || \
		{ echo "gofmt: $$unformatted" >&2; exit 1; }
	cd tests/cluster/kubernetes && $(GO_VET) ./cmd/clustertool

cluster:
	@tests/cluster/build.sh >/dev/null
	@tests/cluster/helm.sh >/dev/null

# All binaries, and the simulated driver as a library: tests start them by path.
# The scheduler with fail-points is a binary of its own; no other build has them.
binaries:
	cargo build --workspace --locked

build: binaries
	cargo build --workspace --locked --features aliquot-scheduler/fail-points --bin aliquot-scheduler-chaos
	cargo build --locked -p aliquot-device-plugin --features fail-points --bin aliquot-device-plugin-chaos
