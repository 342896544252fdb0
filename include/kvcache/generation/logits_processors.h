// Transformers' logits processors, with its formulas and names: each header has those of one theme.
#pragma once

#include "kvcache/generation/encoder_processors.h"
#include "kvcache/generation/entropy_warpers.h"
#include "kvcache/generation/length_processors.h"
#include "kvcache/generation/logits_processor.h"
#include "kvcache/generation/ngram_processors.h"
#include "kvcache/generation/probability_warpers.h"
#include "kvcache/generation/repetition_processors.h"
#include "kvcache/generation/scale_processors.h"
#include "kvcache/generation/sequence_processors.h"
#include "kvcache/generation/token_processors.h"
