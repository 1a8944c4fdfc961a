# `make demo` trains digits on the MNIST files in data/; `make test` runs every test.

CARGO ?= cargo
STRATUS = target/release/stratus
ifdef CARGO_TARGET_DIR
STRATUS = $(CARGO_TARGET_DIR)/release/stratus
endif

.PHONY: demo build dist wheel test test-all check-onnx deps check reference clean-deps

# Without object stores, which take half of the compile time, and without `stratus ui`: the demo's files are
# in the repository.
demo:
	@bash scripts/deps.sh --best-effort
	@bash scripts/deps-jpeg.sh --best-effort
	$(CARGO) build --release --locked -p stratus --no-default-features
	$(STRATUS) train digits --set train.epochs=3

# The libraries are optional: without oneDNN, the reference backend computes; without libjpeg-turbo, JPEG
# decoding is slower.
build:
	@bash scripts/deps.sh --best-effort
	@bash scripts/deps-jpeg.sh --best-effort
	CARGO_PROFILE_RELEASE_DEBUG=line-tables-only $(CARGO) build --release --locked -p stratus
	@bash scripts/split-debug.sh --best-effort $(STRATUS)

# dist/stratus-*.tar.gz and dist/stratus-*.whl: the program with its libraries, for Linux with glibc 2.28.
dist:
	@CARGO=$(CARGO) bash scripts/dist.sh archive

wheel:
	@CARGO=$(CARGO) bash scripts/dist.sh wheel

test:
	@bash scripts/deps.sh --best-effort
	@bash scripts/deps-jpeg.sh --best-effort
	@bash scripts/deps-nvrtc.sh --best-effort
	@bash scripts/deps-mpi.sh --best-effort
	STRATUS_WITHOUT_MPI=$$([ -x .deps/mpich/bin/mpiexec ] || echo 1) $(CARGO) test --workspace --locked
	@bash scripts/amx/test.sh --best-effort
	@bash scripts/check-onnx.sh --best-effort

# Compares exported networks, and models that are imported and exported again, with onnxruntime.
check-onnx:
	@bash scripts/check-onnx.sh

# All tests, optimised, with those that take minutes: a hundred kills, real file servers, a real Slurm; more
# models of ONNX operators, imported networks against PyTorch (STRATUS_TORCH names a Python that has it, else
# 3 GB are fetched), tables read by polars and pandas, metrics compared with scikit-learn's, damaged images
# decoded by other libraries, pages opened in a browser, live ones too, events read by TensorBoard, workers on
# every MPI and over a shaped link, twenty killed workers, forty random faults of the system, a hundred kills
# of `stratus ui`, a thousand random networks, task files read by SkyPilot, every parser fuzzed for 20 s, size
# and line tables of the release build, packages installed in an empty system.
# STORE_SERVERS=none skips the servers if they cannot be installed; the skipped tests are reported.
test-all: test
	@bash scripts/check-release.sh
	@bash scripts/check-dist.sh
	@bash scripts/check-onnx.sh --all
	@bash scripts/check-imported.sh
	@bash scripts/check-tables.sh
	@bash scripts/check-measures.sh
	@COUNT=2000 bash scripts/check-images.sh
	@bash scripts/check-page.sh
	@bash scripts/check-ui.sh
	@bash scripts/ui-faults.sh
	@bash scripts/check-tensorboard.sh
	@bash scripts/check-mpi.sh --best-effort
	@bash scripts/check-sky.sh
	@bash scripts/faults.sh 40
	@bash scripts/check-random-networks.sh 1000 --best-effort
	@bash scripts/fuzz.sh --seconds 20 --best-effort
	@[ "$(STORE_SERVERS)" = none ] || bash scripts/store-servers.sh install
	@[ "$(STORE_SERVERS)" = none ] || bash scripts/slurm-server.sh install
	STRATUS_TESTS=all STRATUS_KILLS=100 STRATUS_FAULTS=20 STRATUS_STORE_SERVERS=$(STORE_SERVERS) \
		$(CARGO) test --workspace --locked --release -- --include-ignored
	@bash scripts/check-link.sh --best-effort

# With PREFIX, such as ~/.cargo, oneDNN and libjpeg-turbo are also copied to where PREFIX/bin/stratus finds
# them.
deps:
	@bash scripts/deps.sh
	@bash scripts/deps-jpeg.sh
	@bash scripts/deps-nvrtc.sh
	@bash scripts/deps-mpi.sh
	@[ -z "$(PREFIX)" ] || install -D -t "$(PREFIX)/lib/stratus" .deps/onednn/lib/libdnnl.so.3 \
		.deps/libjpeg/lib/libjpeg.so.62

# Format, lints, lines within 110 columns, retired words, pages and documentation without broken links, and
# the licences, sources and checksums of crates.
check:
	@python3 scripts/check-dependencies.py
	@bash scripts/check-width.sh
	@bash scripts/check-words.sh
	@python3 scripts/check-links.py
	@bash scripts/check-javascript.sh
	@CARGO=$(CARGO) bash scripts/format.sh --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# Writes the pages of configuration keys and of commands, and the tables of operations of the pages; tests
# fail if they are out of date.
reference:
	$(CARGO) run -q --locked -p stratus -- config keys --markdown > docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md
	$(CARGO) run -q --locked -p stratus -- man --markdown > docs/commands.md.new
	mv docs/commands.md.new docs/commands.md
	UPDATE_PAGES=1 $(CARGO) test -q --locked -p stratus-graph -p stratus-onnx documentation_lists

clean-deps:
	rm -rf .deps
