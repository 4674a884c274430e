# Needs Rust (rustup reads rust-toolchain.toml), Go, a C compiler and Python 3, and installs the
# Debian packages that a command needs. What is built from Go modules (the test cluster, helm, NVIDIA's container toolkit)
# is kept in ~/.cache/aliquot.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo demo-down check test lanes test-all test-oldest chaos gangs admission hold image bench deny docs fuzz reference screens newcomer lint cluster helm toolkit demo-binaries binaries build tests

CARGO_TARGET_DIR ?= target
DEMO := $(CARGO_TARGET_DIR)/debug/demo
# The flags of hack/cache.sh, so that vet finds what it compiled. Not for
# kubebox: it only starts upstream commands, and vet would read all of Kubernetes.
GO_VET := CGO_ENABLED=0 go vet -trimpath -gcflags=all=-dwarf=false

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Install the chart on a real cluster with simulated GPUs, run the examples, and check their limits
	@tests/side-by-side.sh cluster='$(MAKE) --no-print-directory cluster helm toolkit' binaries='$(MAKE) --no-print-directory demo-binaries'
	@$(DEMO) up

demo-down: ## Remove everything that `make demo` started
	@test -x $(DEMO) || $(MAKE) --no-print-directory demo-binaries
	@$(DEMO) down

newcomer: ## Time a newcomer's path in a fresh clone: make demo, change a value, see it
	tests/e2e/newcomer.sh

# Tests that need no cluster and no driver, in seconds. Everything is selected from the whole
# workspace: another selection would have other features, and dependencies would be built again.
CARGO_TEST := cargo test --workspace --locked --no-fail-fast
named = $(foreach name,$(1),--test $(name))
CHECK := --lib --bins $(call named,config convert corpus dashboards document documented effective golden image \
	invalid kubectl ledger_model limits merged old_driver peers protocol reference refused release rendered resolve \
	style tls)
# Tests of the limiter, also under NVIDIA's container toolkit, of the simulator, of the page and of
# the objects, without a cluster.
LIMITER := $(call named,attacks blocking_calls compat container_images device_view driver every_call full_gpu graphs \
	injection lent_memory linking memory_kinds memory_lifetime memory_limit mps oversubscription simulator \
	mps_supervisor page schemas toolkit)
CONTROL_PLANE := $(call named,control_plane chaos gangs installed)

check: lint ## Formatting, lints, unit tests, the model of the ledger, the rendered chart
	$(CARGO_TEST) $(CHECK)

test: ## What every change must pass: check, and every promise that crosses programs, once
	@tests/side-by-side.sh cluster='$(MAKE) --no-print-directory cluster helm toolkit' build='$(MAKE) --no-print-directory lint build tests'
	@$(MAKE) --no-print-directory lanes

# The lanes of `make test`, side by side, the longest first. tests/repeat.sh runs them again and again.
LANES := control-plane limiter node sharing check
each = $(foreach lane,$(2),$(1)$(lane)='$(MAKE) --no-print-directory lane-$(lane)')
lanes: build
	@tests/side-by-side.sh $(call each,,$(LANES))

lane-check:
	$(CARGO_TEST) $(CHECK)
lane-limiter:
	$(CARGO_TEST) $(LIMITER)
lane-control-plane:
	$(CARGO_TEST) $(CONTROL_PLANE)
lane-node:
	$(CARGO_TEST) --test node
lane-sharing:
	$(CARGO_TEST) --test sharing

tests:
	$(CARGO_TEST) $(CHECK) $(LIMITER) $(CONTROL_PLANE) --test node --test sharing --no-run

# The limiter's suites on an unkind driver, without what counts on its kind figures.
HARSH := $(call named,attacks blocking_calls device_view graphs injection memory_kinds memory_lifetime \
	memory_limit oversubscription) -- --skip detects_program_that_uses_gpu_without_library \
	--skip lists_own_processes_in_nvml \
	--skip refuses_memory_beyond_small_host_reserve --skip runs_two_full_size_tenants
MEASURED := $(call named,compute_share priorities churn gpu_script oom_killer programs)
# The lanes of `make test-all` beside those of `make test`, and those of it that measure time;
# .github/workflows/nightly.yml has a job for each.
LONG_LANES := chaos gangs long test-oldest hold harsh model packing karpenter image docs
ALONE := measured admission

$(addprefix lane-,chaos gangs test-oldest hold image docs admission): lane-%: %
lane-karpenter:
	$(CARGO_TEST) --test karpenter -- --ignored
lane-measured:
	$(CARGO_TEST) $(MEASURED)
lane-long:
	$(CARGO_TEST) $(call named,control_plane installed node sharing) -- --ignored
lane-harsh:
	GPUSIM_PROFILE=harsh $(CARGO_TEST) $(HARSH)
lane-model:
	ALIQUOT_STEPS=1000000 $(CARGO_TEST) --test ledger_model
lane-packing:
	cargo test --release --locked -p aliquot-packing

test-all: lint cluster helm toolkit build ## Everything: also boots in random order, chaos, bursts, churn, packing, shares over time; a table at the end
	$(CARGO_TEST) --no-run
	@tests/side-by-side.sh --table $(call each,,$(LONG_LANES) $(LANES)) $(call each,--alone=,$(ALONE))

# What of Kubernetes we rely on and is not of its API: the Binding and its preconditions, what
# wakes a pending pod, the functions of CEL in the admission policies, the kubelet's checkpoint and
# calls. README.md says what the kubelet of then does otherwise.
test-oldest: cluster helm build ## Binding, policies, requeues and checkpoint on the oldest Kubernetes that the chart installs on
	ALIQUOT_KUBERNETES=oldest cargo test --workspace --locked --test control_plane
	ALIQUOT_KUBERNETES=oldest cargo test --workspace --locked --test installed api_server_refuses_forbidden_verbs_and_annotations
	ALIQUOT_KUBERNETES=oldest cargo test --workspace --locked --test node example_pod_gets_its_share
	ALIQUOT_KUBERNETES=oldest cargo test --workspace --locked --test node container_keeps_its_share_through_plugin_restarts
	ALIQUOT_KUBERNETES=oldest cargo test --workspace --locked --test node pod_created_during_an_agent_restart
	ALIQUOT_KUBERNETES=oldest cargo test --workspace --locked --test node runs_init_containers_whose_shares

chaos: cluster build ## Kill every process of two scheduler replicas at every fail-point, 10,000 pods; also the agent
	ALIQUOT_CHAOS_PODS=5000 cargo test --workspace --locked --test chaos

gangs: cluster build ## 500 rounds of two gangs that compete for room for one and a half, 50 with a leader killed
	ALIQUOT_GANG_ROUNDS=500 cargo test --workspace --locked --test gangs -- --nocapture

admission: cluster build ## 200 GPU pods a second for 10 minutes, one of two webhooks killed at random, certificates new each minute
	cargo build --release --quiet --locked -p aliquot-webhook
	ALIQUOT_ADMISSION=long cargo test --workspace --locked --test admission -- --nocapture

hold: build ## A million random allocations at the limit, and a thousand kills, against the simulator's count
	ALIQUOT_CHURN=long cargo test --workspace --locked --test churn -- --nocapture

image: ## Build images/Dockerfile with buildah on base images of Debian's packages, and run its programs
	cargo test --workspace --locked --test dockerfile

bench: cluster ## Measure what docs/SPECIFICATION.md promises, in release builds; an error if a target is not met
	cargo build --release --quiet --locked -p aliquot-scheduler -p aliquot-device-plugin -p aliquot-monitor -p aliquot-performance
	cargo build --release --quiet --locked -p aliquot-limiter -p aliquot-gpusim -p aliquot-gpusim-cuda
	@status=0; for bench in performance limiter-tests; do \
		cargo run --release --quiet --locked -p aliquot-$$bench || status=1; done; exit $$status

deny: ## Check dependencies with cargo-deny, with advisories of today (their database is on GitHub)
	tests/style/deny.sh fetch

FUZZ_MINUTES ?= 1
fuzz: ## Look for inputs that break a property, FUZZ_MINUTES for each target (nightly Rust)
	tests/fuzz/run.sh $(FUZZ_MINUTES)

docs: ## Check the words of the documents, build them as a site in target/docs with mdBook, and check its links
	tests/style/docs.sh

reference: ## Write the pages of docs/reference that are made from the code
	UPDATE=1 cargo test --quiet --locked -p aliquot-chart --test reference
	UPDATE=1 cargo test --quiet --locked -p aliquot-cli --test reference
	UPDATE=1 cargo test --quiet --locked -p aliquot-limiter --lib generates_driver_call_reference_from_table
	UPDATE=1 cargo test --quiet --locked -p aliquot-scheduler --lib metrics_reference_matches_table
	UPDATE=1 cargo test --quiet --locked -p aliquot-monitor --lib metrics_reference_matches_declarations
	UPDATE=1 cargo test --quiet --locked -p aliquot-nvml --lib xid_reference_matches_catalogue

screens: build ## Draw the pictures in docs/screens anew
	UPDATE=1 cargo test --workspace --locked --test installed hami_12_pod_survives_chart_upgrade_and_uninstall
	cargo run --quiet --locked -p aliquot-page --bin screens

lint: ## Formatting, lints of the Rust and Go code, spelling, links, and dependencies against deny.toml
	cargo fmt --all --check
	tests/style/deny.sh
	tests/style/tool.sh typos
	git ls-files -z '*.md' | xargs -0 tests/style/tool.sh lychee --offline --include-fragments --no-progress --quiet
	cargo clippy --workspace --all-targets --locked -- -D warnings -D clippy::todo -D clippy::unimplemented
	@rustup target list --installed | grep -qx aarch64-unknown-linux-gnu || rustup target add aarch64-unknown-linux-gnu
	cargo check --locked -p aliquot-limiter -p aliquot-hook --target aarch64-unknown-linux-gnu
	@unformatted=$$(gofmt -l tests/cluster/kubernetes tests/cluster/oldest tests/toolkit/inject) && test -z "$$unformatted" || \
		{ echo "gofmt: $$unformatted" >&2; exit 1; }
	cd tests/cluster/kubernetes && $(GO_VET) ./cmd/clustertool
	cd hack/toolkit && $(GO_VET) ../../tests/toolkit/inject/main.go

cluster: helm
	@tests/cluster/build.sh >/dev/null

helm:
	@hack/helm.sh >/dev/null

toolkit:
	@tests/toolkit/build.sh >/dev/null

# All binaries, and the simulated driver as a library: tests start them by path.
# The scheduler with fail-points is a binary of its own; no other build has them.
binaries:
	cargo build --workspace --locked

# Only what `make demo` starts.
demo-binaries:
	cargo build --locked -p aliquot-scheduler -p aliquot-webhook -p aliquot-device-plugin -p aliquot-monitor \
		-p aliquot-cli -p aliquot-limiter -p aliquot-hook -p aliquot-gpusim -p aliquot-gpusim-cuda -p aliquot-chart --bins --lib

build: binaries
	cargo build --workspace --locked --features aliquot-scheduler/fail-points --bin aliquot-scheduler-chaos
	cargo build --locked -p aliquot-device-plugin --features fail-points --bin aliquot-device-plugin-chaos
