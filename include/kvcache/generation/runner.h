// generate(): drives a language model with a cache, token by token.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>

#include "kvcache/cache/cache.h"
#include "kvcache/generation/detail/kept_caches.h"
#include "kvcache/generation/generation_config.h"
#include "kvcache/generation/logits_processor.h"
#include "kvcache/generation/output.h"
#include "kvcache/generation/running_text.h"
#include "kvcache/generation/stopping.h"
#include "kvcache/generation/streamer.h"
#include "kvcache/models/language_model.h"

namespace kvcache {

struct Inputs {
  // int64 or int32 [batch, tokens], at least one of each; undefined: one row that holds the
  // config's bos token. Its device is that of the loop's own tensors and of the output; only what
  // the model reads is moved to the model's device.
  at::Tensor input_ids = {};

  // Integer or bool [batch, tokens], 0 = padding; absent: every token counts, whatever its id. Rows
  // are padded on the left. Of the full length [batch, cached + tokens], it declares a
  // continuation.
  //
  // In a model with an encoder these two are the encoder's: padded on either side, and undefined
  // only in a continuation, which then goes on with what the cache holds of the encoder.
  std::optional<at::Tensor> attention_mask = {};

  // The decoder's ids and mask in a model with an encoder, as said of the two above in one without.
  // Undefined: one token, the config's decoder_start_token_id.
  at::Tensor decoder_input_ids = {};
  std::optional<at::Tensor> decoder_attention_mask = {};

  // With a cache that holds tokens: false: input_ids are the whole text; what it has in common with
  // the cache's tokens is kept, the rest of the cache is taken back. true: input_ids follow after
  // the cache's tokens.
  bool continuation = false;

  // For do_sample: on the inputs' device; its state moves on. make_generator(seed) makes one.
  std::optional<at::Generator> generator = {};

  // Run after the config's, before temperature and the other warpers. One of a class of which the
  // config asks for a processor, warpers excepted, takes that processor's place.
  LogitsProcessors logits_processors = {};
  StoppingCriteria stopping_criteria = {};  // beside the config's
  MakeRunningText text = {};     // for stop_strings: running_text(tokenizer), chat/tokenizer_text.h
  Streamer* streamer = nullptr;  // not with num_beams

  // Drafts num_assistant_tokens tokens at a time, which the model checks in one forward pass: the
  // same text sooner, greedy and sampled alike. A decoder with the same vocabulary, in another call
  // or thread as it likes. One row only, as prompt_lookup_num_tokens.
  const LanguageModel* assistant_model = nullptr;
};

// A model and what lives between calls of generate(): the static caches that it made, at most two,
// which later calls use again and replace by larger ones as they need them. Not for several threads
// at once; runners over one model are independent.
class Runner {
 public:
  // Keeps a reference: the model must outlive the runner.
  explicit Runner(const LanguageModel& model) : model_(model) {}

  // Without a cache, one of the config's kind is made and returned, for a model with an encoder an
  // EncoderDecoderCache; the text is then the decoder's. A cache that is passed in ends up holding
  // every row's text but its last token; cache_implementation is then refused. A cache of one row
  // serves any number of rows: what all of them begin with is kept, once.
  //
  // A row that has ended costs nothing more: it leaves the batch, and in the cache it is at the end
  // as if it had run alone, rows with fewer tokens behind padding. In full layers of a fixed size,
  // and over a prefix that rows share, it stays and gets padding, which the model leaves out; over
  // a shared prefix that padding comes behind its tokens. In the next turn pass, of every row, its
  // whole text padded on the left, or, as a continuation, its own last token and what follows.
  //
  // With num_beams the cache has a row for each prompt at first, and one for each text returned in
  // the end.
  //
  // With drafts the cache records what the longest one may have to take back, and goes on doing so:
  // see Cache::activate_past_recording(). A larger bound of the caller's stays; what was recorded
  // goes with the first draft that is taken back, as with every crop. Where layers of a fixed size
  // hold tokens and have no room to record, drafts are as long as what they do record, or there are
  // none: the same text, token by token.
  //
  // Lengths (max_length, ...) count the whole text, also that of a continuation, and processors see
  // all of it; tokens that the cache does not know look like padding to them.
  //
  // Throws ValueError for inputs or a config that cannot work, before anything changed;
  // RuntimeError for a cache whose tokens are not known (unless a continuation is declared), and
  // for scores that leave nothing to choose. Whatever throws, the cache stays whole: it holds the
  // steps done so far, of all rows; but no tokens where memory lacks to put rows together of which
  // some had ended.
  Output generate(const Inputs& inputs, const GenerationConfig& config = {},
                  Cache* past_key_values = nullptr);

  const LanguageModel& model() const { return model_; }

  // Lets go of the static caches that it keeps and no caller holds, and of their memory.
  void release_caches() { kept_.release(); }

 private:
  const LanguageModel& model_;
  detail::KeptCaches kept_;
};

// As Runner(model).generate(...).
Output generate(const LanguageModel& model, const Inputs& inputs,
                const GenerationConfig& config = {}, Cache* past_key_values = nullptr);

}  // namespace kvcache
