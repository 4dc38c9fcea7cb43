"""Creates the tokenizers for the tests of @mosaic/models, and their results in Python's tokenizers and transformers.

    python make_tokenizers.py        with transformers 5.18.0, tokenizers 0.23.2
"""

import json
import pathlib
import shutil

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent / "tokenizers"

CORPUS = [
    "The ring passes keys and values from rank to rank, and every rank merges what it has seen.",
    "Each query sees the keys before it; the merge of two states is associative and commutative.",
    "Attention over a long sequence is computed in parts, and the parts are combined in any order.",
    "Die Schlüssel wandern im Kreis, und jeder Rang verbindet, was er gesehen hat. Größe, Straße, Übermut.",
    "Les clés et les valeurs passent d'un rang à l'autre, et l'ordre n'a pas d'importance.",
    "Ключи и значения передаются по кругу, порядок слияния не важен.",
    "関心は状態であり、状態は結合できる。順序は関係ない。",
    "for (const step of rotate(group, kv)) { if (visible) attend(state, step.k, step.v); } // 12 345.67 tokens",
    "It's 2026; we've got 3 ranks, don't we? \"Yes,\" she replied: they're there.",
]
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "  leading and  double   spaces, tabs\tand\nnew\n\nlines \n",
    "It's what we've got; I'll take 1234567890 of them, they'd agree. CAN'T?",
    "Größenwahn — naïve café, “quotes” … and em—dashes",
    "Внимание 注意 주의 انتباه",
    "emoji 🙂👩‍👩‍👧‍👦 and flags 🇩🇪, math ∑∫√, ½ ② ﬁ Ａ",
    "def f(x):\n    return x**2 + 1  # comment\n\tif x: pass",
    "<|user|>hello<|end|> then </s> and <s>, <unk>",
    "a",
    " ",
    "",
    "\u00e9 e\u0301 \u200b zero width",
    "supercalifragilisticexpialidocious" * 3,
]
# Chat templates in the style of each model family, with its turns, special tokens and conditions.
CHATML = (
    "{%- if messages[0].role == 'system' %}{{- '<|user|>system\\n' + messages[0].content + '<|end|>\\n' }}"
    "{%- else %}{{- '<|user|>system\\nYou are a helpful assistant.<|end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' or message.role == 'assistant' %}"
    "{{- '<|user|>' + message.role + '\\n' + message.content | trim + '<|end|>' + '\\n' }}"
    "{%- elif message.role == 'tool' %}{{- '<|user|>tool\\n' + (message.content | tojson) + '<|end|>\\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|user|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)
TURNS = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.first %}{% set content = system + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + content | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
PARTS = (
    "{{ bos_token }}{%- set ns = namespace(count=0) -%}"
    "{%- macro turn(role, content) -%}<|user|>{{ role }}\n"
    "{% if content is string %}{{ content | trim }}{% else %}{% for part in content %}{{ part.text | upper if part.loud else part.text }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}{% endif %}<|end|>\n{% endmacro -%}"
    "{%- for message in messages -%}{%- set ns.count = ns.count + 1 -%}"
    "{{ turn('model' if message.role == 'assistant' else message.role, message.content) }}{%- endfor -%}"
    "{{ ns.count }}{% if add_generation_prompt %}<|user|>model\n{% endif %}"
)
CHATS = [
    [{"role": "user", "content": "  Hello, who are you?  "}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe?"}],
    [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2\n"}, {"role": "user", "content": "3 \"quoted\" <|end|>"}],
]
SPECIAL = ["<unk>", "<s>", "</s>"]
ADDED = ["<|user|>", "<|end|>"]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def begins_with_bos(tokenizer):
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )


def byte_level():
    """As in Llama 3 and Qwen: byte-level BPE after splitting by a regular expression."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=sorted(alphabet), special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    begins_with_bos(tokenizer)
    return tokenizer, CHATML


def byte_fallback():
    """As in Llama 2, Mistral and Gemma: BPE over characters, with byte fallback for unknown characters."""
    trained = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=420, show_progress=False, special_tokens=SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)], limit_alphabet=48
    )
    trained.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    trained.train_from_iterator(CORPUS, trainer)
    saved = json.loads(trained.to_str())
    saved["pre_tokenizer"] = None
    saved["added_tokens"] = [each for each in saved["added_tokens"] if each["content"] in SPECIAL]
    tokenizer = Tokenizer.from_str(json.dumps(saved))
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    ])
    begins_with_bos(tokenizer)
    return tokenizer, TURNS


def unigram():
    """As in T5 and XLM-R: Unigram over text normalized by NFKC."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=260, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    begins_with_bos(tokenizer)
    return tokenizer, PARTS


def expectations(fast):
    texts = []
    for text in TEXTS:
        ids = fast(text)["input_ids"]
        plain = fast(text, add_special_tokens=False)["input_ids"]
        decoded = fast.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        shown = fast.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        texts.append(dict(text=text, ids=ids, plain=plain, decoded=decoded, shown=shown))
    chats = []
    for messages in CHATS:
        for variables in (dict(add_generation_prompt=True), dict(add_generation_prompt=False, enable_thinking=False)):
            chats.append(dict(messages=messages, variables=variables, text=fast.apply_chat_template(messages, tokenize=False, **variables)))
    return dict(texts=texts, chats=chats)


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    for make in (byte_level, byte_fallback, unigram):
        tokenizer, template = make()
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in ADDED])
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=template
        )
        folder = HERE / make.__name__.replace("_", "-")
        fast.save_pretrained(folder)
        (folder / "expected.json").write_text(json.dumps(expectations(fast), ensure_ascii=False, indent=1) + "\n")
        print(folder.name, len(fast), sum(path.stat().st_size for path in folder.iterdir()))
