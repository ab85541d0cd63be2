# Doors: each target sets up what it needs (scripts/setup says what and why), then does one thing.
#
#   make demo             the main job: near and far memory beside each other, in the lab if this machine has one tier
#   make test             tests of all crates, and guests of the lab for what users meet first (LAB=off: no guests)
#   make test-all         every test; its last result is kept in target/test-all.txt
#   make test-repeat      tests of all crates N=20 times beside LOAD=4 busy loops, with the failures of each test
#   make build            target/release/{nearfar,nearfar-bench,nearfar-lab,nearfar-load} and the lab's timing plugin beside them
#   make library          target/abi: libnearfar.so and .a, the preload library, libhmalloc and libsmalloc
#   make library-checked  target/checked/abi: two of them that find what is freed wrongly
#   make sanitize         libnearfar under Valgrind and gcc's sanitizers, and the checked build's tests
#   make fuzz             parsers of input from outside (protocols, files), fuzzed for a minute each (SECONDS=600); 20 s in make test-all
#   make python           the Python package's wheel, checked and tested (part of make test-all)
#   make kubernetes       pods of a real kubelet in the lab, the driver with a real API server; builds them first (12 min, Go)
#   make lint             rustfmt, clippy -D warnings, licences and crate directions, doc links
#   make corpus           hwloc's snapshots of Linux machines (Debian's source package), compared with what hwloc expects of each
#   make sbom             target/nearfar.cdx.json: the software bill of materials (CycloneDX) of all that is shipped
#   make bench-bandwidth  bandwidth of -w auto against its peers, ratios in one run (make bench-bandwidth SMOKE=1: a look)
#   make bench-tiering    tiering systems side by side on emulated machines, with a page (SMOKE=1: a look; KERNEL=7.2; BOOTS=3)
#   make bench-balance    traffic management side by side on an emulated machine, with a page (SMOKE=1: a look; KERNEL=7.2; ROUNDS=3)
#   make bench-alloc      allocation by kind beside jemalloc and other peers, ratios in one run, then heaps in the lab (SMOKE=1: a look)
#   make bench-cache      the cache beside segcache, quick_cache, foyer and moka, in memory: ratios in one run (ROUNDS=3)
#   make bench-lab        accuracy and cost of the emulation
#   make bench-commands   times of topo, status, ps and vm with 1,024 nodes, 2,000 processes and 50 virtual machines
#   make install          what make build has made, below PREFIX (/usr/local) and DESTDIR; make uninstall takes it away again
#   make manual           the documents as a book for a browser, in target/manual/book
#   make package          Debian packages of what make build makes, in target/debian/now, checked; make package-test tries them in a bare root
#   make tarball          what make install installs as one archive, with programs that need no library of the machine
#   make setup            only the set-up; make clean: only the build artefacts

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
CARGO ?= cargo
export CARGO_TARGET_DIR ?= $(CURDIR)/target
RELEASE := $(CARGO_TARGET_DIR)/release
PLUGIN := $(RELEASE)/libnearfar_lab_plugin.so
PRELOADED := libnearfar_preload.so libnearfar_vm_interleave.so
PEERS := $${NEARFAR_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/nearfar}/peers
export NEARFAR_LAB_PLUGIN ?= $(PLUGIN)
SMOKE_FLAG := $(if $(SMOKE),--smoke,)

.PHONY: corpus demo test test-all test-repeat test-libraries build plugin library library-checked sanitize fuzz python kubernetes lint sbom bench-bandwidth bench-tiering bench-balance bench-alloc bench-cache bench-lab bench-commands install uninstall package package-test tarball manual setup clean help

help:
	@sed -n '3,28s/^# *//p' Makefile

setup:
	@scripts/setup build

plugin:
	@scripts/setup build
	env -u CARGO_PROFILE_ABI_OPT_LEVEL $(CARGO) build --locked -q -p nearfar-lab-plugin --profile abi
	@mkdir -p $(RELEASE)
	@cmp -s $(CARGO_TARGET_DIR)/abi/libnearfar_lab_plugin.so $(PLUGIN) || cp $(CARGO_TARGET_DIR)/abi/libnearfar_lab_plugin.so $(PLUGIN)

# The libraries that programs link or preload, in target/abi; those for HMSDK's and SMDK's programs link libnearfar.so.
library:
	@scripts/setup build
	$(CARGO) build --locked -q -p nearfar-libnearfar --profile abi
	@ln -sfn libnearfar.so $(CARGO_TARGET_DIR)/abi/libnearfar.so.0
	$(CARGO) build --locked -q -p nearfar-libhmalloc --profile abi
	$(CARGO) build --locked -q -p nearfar-libsmalloc --profile abi
	$(CARGO) build --locked -q -p nearfar-libsmalloc-static --profile abi
	$(CARGO) build --locked -q -p nearfar-preload --profile abi
	$(CARGO) build --locked -q -p nearfar-vm-interleave --profile abi
	@mkdir -p $(RELEASE)
	@for file in $(PRELOADED); do cmp -s $(CARGO_TARGET_DIR)/abi/$$file $(RELEASE)/$$file || cp $(CARGO_TARGET_DIR)/abi/$$file $(RELEASE)/; done

library-checked:
	@scripts/setup build
	$(CARGO) build --locked -q -p nearfar-libnearfar --profile abi --features checked --target-dir $(CARGO_TARGET_DIR)/checked
	@ln -sfn libnearfar.so $(CARGO_TARGET_DIR)/checked/abi/libnearfar.so.0
	$(CARGO) build --locked -q -p nearfar-preload --profile abi --features checked --target-dir $(CARGO_TARGET_DIR)/checked

sanitize:
	@scripts/setup sanitize
	scripts/sanitize

build: plugin library
	$(CARGO) build --locked --release -p nearfar -p nearfar-lab -p nearfar-load -p nearfar-hmctl

demo: build
	@scripts/setup demo
	$(RELEASE)/nearfar demo --html $(CARGO_TARGET_DIR)/nearfar-demo.html

test:
	@scripts/setup test
	scripts/test

# For make test: libraries that are not optimised in full, which takes minutes; make test-all has them as they are shipped. (The
# emulator's plugin is always quick.) They take jemalloc as the tests have built it: it takes a CPU minutes, and each library one.
JEMALLOC := s|.*"build-script-executed".*tikv-jemalloc-sys@.*"out_dir":"\([^"]*\)".*|\1/lib/libjemalloc_pic.a|p
test-libraries:
	$(CARGO) test -q --locked --workspace --no-run
	jemalloc=$$($(CARGO) test -q --locked --workspace --no-run --message-format json | sed -n '$(JEMALLOC)') && \
		JEMALLOC_OVERRIDE=$$jemalloc CARGO_PROFILE_ABI_LTO=false CARGO_PROFILE_ABI_CODEGEN_UNITS=16 CARGO_PROFILE_ABI_OPT_LEVEL=1 \
		$(MAKE) plugin library

test-all:
	@scripts/setup test
	@scripts/setup sanitize
	@scripts/setup fuzz
	@scripts/setup python
	scripts/test all

test-repeat:
	@scripts/setup test
	scripts/test-repeat $(or $(N),20) $(or $(LOAD),4)

fuzz:
	@scripts/setup fuzz
	scripts/fuzz $(or $(SECONDS),60)

# The Python package: its wheel, and all tests of it (artefacts/python/check --torch: those with PyTorch, too).
python:
	@scripts/setup python
	artefacts/python/check

kubernetes: plugin library
	@scripts/setup kubernetes
	scripts/kubernetes

lint:
	@scripts/setup lint
	scripts/lint

corpus:
	@scripts/setup build
	scripts/corpus

sbom:
	@scripts/setup sbom
	scripts/sbom

bench-bandwidth: build
	@scripts/setup demo
	$(RELEASE)/nearfar-bench bandwidth $(SMOKE_FLAG)

bench-tiering: build
	@scripts/setup tiering
	$(RELEASE)/nearfar-bench tiering $(SMOKE_FLAG) $(if $(KERNEL),--kernel $(KERNEL),) $(if $(BOOTS),--boots $(BOOTS),) \
		--save $(CARGO_TARGET_DIR)/nearfar-tiering.json --html $(CARGO_TARGET_DIR)/nearfar-tiering.html

bench-cache:
	@scripts/setup build
	CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/bench-cache $(CARGO) run -q --release --manifest-path benches/cache/Cargo.toml -- $(if $(ROUNDS),rounds=$(ROUNDS),)

bench-balance: build
	@scripts/setup balance
	status=0; \
	$(RELEASE)/nearfar-bench balance $(SMOKE_FLAG) $(if $(KERNEL),--kernel $(KERNEL),) $(if $(ROUNDS),--rounds $(ROUNDS),) \
		--save $(CARGO_TARGET_DIR)/nearfar-balance.json --html $(CARGO_TARGET_DIR)/nearfar-balance.html || status=$$?; \
	$(RELEASE)/nearfar-bench balance --programs contended,uncontended $(SMOKE_FLAG) $(if $(KERNEL),--kernel $(KERNEL),) \
		$(if $(ROUNDS),--rounds $(ROUNDS),) --save $(CARGO_TARGET_DIR)/nearfar-contended.json \
		--html $(CARGO_TARGET_DIR)/nearfar-contended.html || status=$$?; \
	exit $$status

bench-alloc: build library
	@scripts/setup alloc
	LIBNEARFAR=$(CARGO_TARGET_DIR)/abi/libnearfar.so LIBUMF=$(PEERS)/umf/lib/libumf.so.1 \
		$(CARGO) bench --locked -q -p nearfar-alloc --bench alloc -- $(SMOKE_FLAG)
	LIBNEARFAR_PRELOAD=$(CARGO_TARGET_DIR)/abi/libnearfar_preload.so $(CARGO) bench --locked -q -p nearfar-alloc --bench preload -- $(SMOKE_FLAG)
	@scripts/setup lab
	NEARFAR=$(RELEASE)/nearfar $(CARGO) bench --locked -q -p nearfar-alloc --bench replicated -- $(SMOKE_FLAG)
	$(RELEASE)/nearfar-bench heap $(SMOKE_FLAG) $(if $(KERNEL),--kernel $(KERNEL),) --save $(CARGO_TARGET_DIR)/nearfar-heap.json

bench-commands: build
	@scripts/setup lab
	scripts/bench-commands

manual: build
	@scripts/setup manual
	scripts/manual

bench-lab: build
	@scripts/setup lab
	$(RELEASE)/nearfar dev accuracy
	$(RELEASE)/nearfar dev accuracy --curves
	$(RELEASE)/nearfar dev overhead
	$(RELEASE)/nearfar dev repeat

# Copies, and builds nothing (scripts/install says where to): make build first, then this as who may write there.
package: build
	@scripts/setup package
	scripts/package

package-test: build
	@scripts/setup package
	scripts/package test

tarball: plugin library
	@scripts/setup tarball
	scripts/tarball

install uninstall:
	@scripts/install $@

clean:
	$(CARGO) clean
