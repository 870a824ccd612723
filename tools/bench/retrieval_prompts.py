"""The prompts of train_retrieval.py and bench_blend.py --retrieval. A paragraph has words, some keys among them, and ends with a name.
The answer to the question for a key is the name that the paragraph before the key's ends with: what is kept of a paragraph behind
another one knows the wrong name, as whoever attends to the key alone cannot tell."""
KEYS, NAMES = range(100, 172), range(200, 232)
QUESTIONS = range(300, 372)  # for the keys
WORDS = range(400, 600)
PARAGRAPHS = 12  # at most
KEYS_OF_EACH = 2
WORDS_OF_EACH = 30


def paragraphs_of(source, count):
    """Of each: its tokens, of which the last one is its name, and its keys."""
    keys, names = source.sample(KEYS, KEYS_OF_EACH * count), source.sample(NAMES, count)
    made = []
    for number in range(count):
        own = keys[number * KEYS_OF_EACH:(number + 1) * KEYS_OF_EACH]
        tokens = own + source.choices(WORDS, k=WORDS_OF_EACH)
        source.shuffle(tokens)
        made.append((tokens + [names[number]], own))
    return made


def prompt_of(source, paragraphs, separator):
    """Its tokens up to the questions, and the answers to these. It begins with a word, and a name that none of the paragraphs has."""
    used = {tokens[-1] for tokens, _ in paragraphs}
    name = source.choice([name for name in NAMES if name not in used])
    prompt, answers = [source.choice(WORDS), name], {}
    for tokens, keys in paragraphs:
        prompt += separator + tokens
        answers |= {QUESTIONS[key - KEYS.start]: name for key in keys}
        name = tokens[-1]
    return prompt + separator, answers
