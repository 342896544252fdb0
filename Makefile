# The everyday commands, thin over the CMake presets. `make run PROMPT="..."` asks something else;
# CONFIGURE_ARGS go to cmake, e.g. CONFIGURE_ARGS=-DLIBTORCH_ROOT=/opt/libtorch.

PROMPT = In two sentences: why does a language model keep a cache of keys and values?
CONFIGURE_ARGS =

# As written, whatever it holds: the shell never sees it but as a variable, and make expands nothing.
export KVCACHE_PROMPT := $(value PROMPT)
unexport PROMPT

.PHONY: help run test lint clean

help:
	@echo 'make run [PROMPT="..."]   fetch SmolLM2-135M-Instruct, build, and answer the prompt'
	@echo 'make test                 build everything and run the release suite'
	@echo 'make lint                 check formatting, includes and file lengths'
	@echo 'make clean                remove build/'

run:
	@scripts/run.sh $(CONFIGURE_ARGS)

test:
	@scripts/test.sh release $(CONFIGURE_ARGS)

lint:
	@scripts/lint.sh

clean:
	rm -rf build
