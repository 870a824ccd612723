#!/usr/bin/env python3
"""Random schemas with random instances against the `jsonschema` package (a half of them with the option any_order), random regular expressions with random texts
against Python's `re`: a grammar takes a text, token by token, exactly where they take it.

TROUPE_CHECK_GRAMMARS is the program check_grammars. Usage: structured_output_check.py [SEED [COUNT]].
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys

import jsonschema

TOKENIZER = pathlib.Path(__file__).resolve().parent.parent / "golden" / "tokenizers" / "llama3"
WORDS = ["a", "ab", "name", "x1", "é", "the value", "", "id_2", "zz", "A-b"]


class Schemas:
    """Draws schemas, and values that have a fair chance to fit them."""

    def __init__(self, rng):
        self.rng = rng

    def number(self, low=-150, high=150):
        if self.rng.random() < 0.7:
            return self.rng.randint(low, high)
        return round(self.rng.uniform(low, high), self.rng.randint(1, 3))

    def schema(self, depth):
        rng = self.rng
        kinds = ["integer", "number", "string", "enum", "const", "boolean", "null", "any"]
        if depth > 0:
            kinds += ["array", "array", "object", "object", "object", "anyOf", "allOf", "oneOf", "ref", "types",
                      "not", "if", "dependent", "contains", "unevaluated"]
        return getattr(self, "make_" + rng.choice(kinds))(depth)

    def make_any(self, depth):
        return self.rng.choice([True, {}])

    def make_boolean(self, depth):
        return {"type": "boolean"}

    def make_null(self, depth):
        return {"type": "null"}

    def make_types(self, depth):
        return {"type": self.rng.sample(["string", "null", "integer", "boolean", "array", "number"], 2)}

    def make_integer(self, depth):
        schema = {"type": "integer"}
        self.bounds(schema)
        if self.rng.random() < 0.25:
            schema["multipleOf"] = self.rng.choice([2, 3, 7, 10, 12])
        return schema

    def make_number(self, depth):
        schema = {"type": "number"}
        self.bounds(schema)
        return schema

    def bounds(self, schema):
        if self.rng.random() < 0.4:
            schema[self.rng.choice(["minimum", "exclusiveMinimum"])] = self.number()
        if self.rng.random() < 0.4:
            schema[self.rng.choice(["maximum", "exclusiveMaximum"])] = self.number()

    def make_string(self, depth):
        rng = self.rng
        schema = {"type": "string"}
        if rng.random() < 0.3:
            schema["minLength"] = rng.randint(0, 4)
        if rng.random() < 0.3:
            schema["maxLength"] = rng.randint(0, 6)
        if rng.random() < 0.25:
            schema["pattern"] = rng.choice(["^a", "b$", "[0-9]", "^[a-z ]*$", "^(a|x).?", "e", "^.{2}$", "-"])
        return schema

    def make_not(self, depth):
        return {"allOf": [self.schema(depth - 1), {"not": self.schema(depth - 1)}]}

    def make_if(self, depth):
        schema = {"if": self.schema(depth - 1)}
        for key in ("then", "else"):
            if self.rng.random() < 0.8:
                schema[key] = self.schema(depth - 1)
        return schema

    def make_dependent(self, depth):
        schema = self.make_object(depth)
        names = list(schema.get("properties", {}))  # others that are required have no place among the rest
        if not names:
            return schema
        if self.rng.random() < 0.5:
            schema["dependentRequired"] = {self.rng.choice(names): [self.rng.choice(names)]}
        else:
            schema["dependentSchemas"] = {self.rng.choice(names): self.make_object(depth - 1)}
        return schema

    def make_contains(self, depth):
        rng = self.rng
        schema = self.make_array(depth)
        if rng.random() < 0.5:
            schema.pop("uniqueItems", None)
        schema["contains"] = self.schema(0)
        if rng.random() < 0.5:
            schema["minContains"] = rng.randint(0, 2)
        if rng.random() < 0.5:
            schema["maxContains"] = rng.randint(0, 2)
        return schema

    def make_unevaluated(self, depth):
        rng = self.rng
        make = rng.choice([self.make_object, self.make_array])
        schema = make(depth)
        for key in ("additionalProperties", "items", "uniqueItems"):
            if rng.random() < 0.8:
                schema.pop(key, None)
        kind = rng.choice(["allOf", "anyOf", "oneOf", "$ref", "if"])
        branches = [make(depth - 1) for _ in range(2)]
        if kind == "$ref":
            schema["$ref"] = "#/$defs/" + ("q" if make == self.make_object else "p")
        elif kind == "if":
            schema.update({"if": branches[0], "then": branches[1]})
        else:
            schema[kind] = branches
        key = "unevaluatedProperties" if make == self.make_object else "unevaluatedItems"
        schema[key] = rng.choice([False, False, self.schema(0)])
        return schema

    def make_enum(self, depth):
        return {"enum": [self.value({}, 1) for _ in range(self.rng.randint(1, 4))]}

    def make_const(self, depth):
        return {"const": self.value({}, 1)}

    def make_array(self, depth):
        rng = self.rng
        schema = {"type": "array"}
        if rng.random() < 0.7:
            schema["items"] = self.schema(depth - 1)
        if rng.random() < 0.3:
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(rng.randint(1, 2))]
            if rng.random() < 0.4:
                schema["items"] = False
        if rng.random() < 0.3:
            schema["minItems"] = rng.randint(0, 3)
        if rng.random() < 0.3:
            schema["maxItems"] = rng.randint(0, 4)
        if rng.random() < 0.15:
            some = [1, 2, "a", "b", None, True, "ab", "a\"", "", 12, "c", "d"]
            schema["items"] = {"enum": rng.sample(some, rng.choice([3, 3, 10]))}
            schema.pop("prefixItems", None)
            schema["uniqueItems"] = True
        return schema

    def make_object(self, depth):
        rng = self.rng
        schema = {"type": "object"}
        names = rng.sample(WORDS, rng.randint(0, 4))
        if names:
            schema["properties"] = {name: self.schema(depth - 1) for name in names}
            schema["required"] = [name for name in names if rng.random() < 0.4]
        if rng.random() < 0.5:
            schema["additionalProperties"] = rng.choice([False, False, self.schema(depth - 1)])
        if rng.random() < 0.2:
            schema["patternProperties"] = {rng.choice(["^a", "\\d$", "e"]): self.schema(depth - 1)}
        if rng.random() < 0.15:
            schema["propertyNames"] = rng.choice([{"maxLength": 2}, {"pattern": "^[a-z0-9_]*$"}])
        if rng.random() < 0.2:
            schema["minProperties"] = rng.randint(0, 3)
        if rng.random() < 0.2:
            schema["maxProperties"] = rng.randint(0, 4)
        return schema

    def make_anyOf(self, depth):
        schema = {"anyOf": [self.schema(depth - 1) for _ in range(2)]}
        if self.rng.random() < 0.3:
            schema["type"] = self.rng.choice(["string", "object", "integer"])
        return schema

    def make_oneOf(self, depth):
        return {"oneOf": [self.schema(depth - 1) for _ in range(2)]}

    def make_allOf(self, depth):
        kind = self.rng.choice(["make_object", "make_array", "make_string", "make_integer"])
        return {"allOf": [getattr(self, kind)(depth - 1 if depth > 1 else 1) for _ in range(2)]}

    def make_ref(self, depth):
        return {"$ref": "#/$defs/" + self.rng.choice(["p", "q"])}

    def value(self, schema, depth):
        """A value that tends to fit."""
        rng = self.rng
        if schema is False or rng.random() < 0.06 or not isinstance(schema, dict) or not schema:
            return self.any_value(depth)
        for key in ("anyOf", "oneOf", "allOf"):
            if key in schema and ("type" not in schema or rng.random() < 0.5):
                value = self.value(rng.choice(schema[key]), depth)
                if "type" in schema and isinstance(value, dict):
                    own = self.value({k: v for k, v in schema.items() if k != key}, depth)
                    value = {**value, **own} if isinstance(own, dict) else value
                return value
        if "if" in schema and ("type" not in schema or rng.random() < 0.5):
            return self.value(schema[rng.choice([key for key in ("if", "then", "else") if key in schema])], depth)
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        if "$ref" in schema:
            return self.value(self.defs[schema["$ref"][-1]], depth - 1) if depth > -4 else None
        kind = schema.get("type")
        kind = rng.choice(kind) if isinstance(kind, list) else kind
        if kind in ("integer", "number"):
            low = schema.get("minimum", schema.get("exclusiveMinimum", -200))
            high = schema.get("maximum", schema.get("exclusiveMaximum", 200))
            edge = rng.choice([low, high, low + 1, high - 1, rng.uniform(min(low, high), max(low, high))])
            if kind == "integer" or rng.random() < 0.3:
                step = schema.get("multipleOf", 1)
                return int(edge) // step * step if rng.random() < 0.8 else int(edge)
            return round(edge, 3)
        if kind == "string":
            return self.text()
        if kind == "array":
            items = schema.get("prefixItems", [])
            count = rng.randint(0, 3)
            rest = schema.get("items", {})
            if schema.get("uniqueItems") and isinstance(rest, dict) and "enum" in rest:
                return rng.sample(rest["enum"], rng.randint(0, 3))
            if "contains" in schema and rng.random() < 0.7:
                return [self.value(rng.choice([rest, schema["contains"]]), depth - 1) for _ in range(count)]
            return [self.value(items[i] if i < len(items) else rest, depth - 1) for i in range(count)]
        if kind == "object":
            result = {}
            for name, inner in schema.get("properties", {}).items():
                if name in schema.get("required", []) or rng.random() < 0.5:
                    result[name] = self.value(inner, depth - 1)
            for _ in range(rng.choice([0, 0, 1, 2])):
                extra = schema.get("additionalProperties", {})
                result.setdefault(rng.choice(WORDS + ["b7", "ee"]), self.value(extra, depth - 1))
            return result
        return self.any_value(depth) if kind is None else {"boolean": True, "null": None}[kind]

    def text(self):
        rng = self.rng
        return rng.choice(WORDS + ["a\"b", "x\ny\\", "a🙂", "\u0001", "".join(rng.choices("abxe 19é-", k=rng.randint(0, 7)))])

    def any_value(self, depth):
        rng = self.rng
        scalar = [lambda: rng.randint(-9, 300), lambda: round(rng.uniform(-5, 5), 2), self.text, lambda: None,
                  lambda: rng.random() < 0.5]
        if depth > 0 and rng.random() < 0.4:
            if rng.random() < 0.5:
                return [self.any_value(depth - 1) for _ in range(rng.randint(0, 3))]
            return {rng.choice(WORDS): self.any_value(depth - 1) for _ in range(rng.randint(0, 3))}
        return rng.choice(scalar)()

    def root(self):
        self.defs = {"p": self.make_array(1), "q": self.make_object(2)}
        schema = self.schema(3)
        if not isinstance(schema, dict):
            return schema
        return {**schema, "$defs": self.defs}


def properties_in_order(schema, value):
    """The grammar has the properties of an object in the schema's order: a text with another one says nothing."""
    def names(s):
        found = []
        if isinstance(s, dict):
            for key, inner in s.items():
                if key == "properties":
                    found.append(list(inner))
                if key not in ("enum", "const"):
                    found += names(inner)
        elif isinstance(s, list):
            for inner in s:
                found += names(inner)
        return found

    orders = names(schema)

    def ordered(v):
        if isinstance(v, list):
            return all(ordered(x) for x in v)
        if not isinstance(v, dict):
            return True
        keys = list(v)
        for order in orders:
            positions = [order.index(k) if k in order else len(order) for k in keys]
            if positions != sorted(positions):
                return False
        # Of properties that several schemas require, the order is that of their joining.
        return all(ordered(x) for x in v.values())

    return ordered(value)


def shuffled(rng, value):
    if isinstance(value, list):
        return [shuffled(rng, inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {name: shuffled(rng, value[name]) for name in rng.sample(list(value), len(value))}


def whole(value):
    """2.0 as 2: the grammar of an integer has no fraction."""
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def regexes(rng, count):
    def pattern(depth):
        kind = rng.randint(0, 9 if depth > 0 else 4)
        if kind <= 1:
            return rng.choice("abcé1 _")
        if kind == 2:
            return rng.choice([".", "\\d", "\\w", "\\s", "\\W", "\\D", "\\S", "\\.", "\\x61", "\\n"])
        if kind <= 4:
            return rng.choice(["[abc]", "[^a]", "[a-c1-3]", "[\\w-]", "[^\\s\\d]", "[]a]", "[\\]\\\\b]", "[é-ü]"])
        if kind <= 6:
            return pattern(depth - 1) + pattern(depth - 1)
        if kind == 7:
            return "(" + pattern(depth - 1) + "|" + pattern(depth - 1) + ")"
        group = "(?:" + pattern(depth - 1) + ")"
        return group + rng.choice(["*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "+?"])

    for _ in range(count):
        source = pattern(4)
        texts = {""}
        for _ in range(14):
            texts.add("".join(rng.choices("aabbc1é_ .\n-", k=rng.randint(0, 6))))
        yield source, sorted(texts)


def run(cases):
    program = os.environ["TROUPE_CHECK_GRAMMARS"]
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run([program, str(TOKENIZER)], input=lines, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"check_grammars ended with {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    print(f"seed {seed}")
    rng = random.Random(seed)
    cases, expected = [], []
    for _ in range(count):
        draw = Schemas(rng)
        schema = whole(draw.root())
        draw.defs = schema.get("$defs", draw.defs) if isinstance(schema, dict) else draw.defs
        validator = jsonschema.Draft202012Validator(schema)
        texts, verdicts = [], []
        any_order = rng.random() < 0.5
        for _ in range(12):
            value = whole(draw.value(schema, 3))
            if any_order:
                value = shuffled(rng, value)
            elif not properties_in_order(schema, value):
                continue
            texts.append(json.dumps(value, ensure_ascii=False, indent=rng.choice([None, None, 2])))
            verdicts.append(validator.is_valid(value))
        cases.append({"kind": "json_schema", "source": json.dumps(schema, ensure_ascii=False), "any_order": any_order,
                      "texts": texts})
        expected.append(verdicts)
    for source, texts in regexes(rng, count):
        compiled = re.compile(source)
        cases.append({"kind": "regex", "source": source, "texts": texts})
        expected.append([compiled.fullmatch(text) is not None for text in texts])
    failures, refused, taken, rejected = 0, {}, 0, 0
    for case, verdicts, result in zip(cases, expected, run(cases), strict=True):
        if "error" in result:
            reason = result["error"]
            refused[reason] = refused.get(reason, 0) + 1
            if reason == "no text fits the grammar" and any(verdicts):
                print(f"no text fits {case['source']}, but {case['texts'][verdicts.index(True)]}")
                failures += 1
            continue
        for text, verdict, accepted in zip(case["texts"], verdicts, result["accepted"], strict=True):
            taken += verdict
            rejected += not verdict
            if accepted != verdict:
                failures += 1
                if failures < 20:
                    print(f"{case['kind']} {case['source']}\n   {text!r}: valid {verdict}, accepted {accepted}")
    print(f"{taken} valid and {rejected} invalid texts; refused: {sum(refused.values())} of {len(cases)}")
    for reason, number in sorted(refused.items(), key=lambda item: -item[1])[:12]:
        print(f"  {number:5} {reason}")
    if failures:
        sys.exit(f"{failures} differ")
    if taken < count or rejected < count:
        sys.exit("too few texts to say anything")


if __name__ == "__main__":
    main()
