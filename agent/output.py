"""The type that an answer is asked for: its JSON schema for the model, and the value of what the model wrote."""

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from types import UnionType
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import TypedDict, TypeVar

from agent.errors import InputError
from agent.keyword_arguments import shown

T = TypeVar("T", default=object)
"""The type of an answer. It is `object` for a run without `output`."""
AnswerType = type[T] | UnionType | None
"""A type that an answer is asked for. None: any text. Checkers do not tell the value of a union."""
MOST_FAULTS = 10
"""The most faults of an answer that are named."""
_NO_TYPES = (str, bytes, BaseModel, TypeAdapter, TypeVar, Mapping)
"""Objects that pydantic takes for types, or fails on without a sentence."""


class Misfit(ValueError):
    """An answer does not fit its type. The text names what does not fit, in plain words."""


def repair_prompt(misfit: Misfit) -> str:
    """Return the message that tells the model what did not fit."""
    return f"Your answer does not have the form that was asked for: {misfit}. Answer again with the whole JSON object."


@dataclass(frozen=True, slots=True)
class OutputType:
    """A type for answers. `schema` is of an object, as providers want it: `wrapped` types are its field "value".

    `is_open`: a dict with any keys is allowed somewhere, or any value.
    """

    adapter: TypeAdapter[Any]
    bare: TypeAdapter[Any]
    schema: dict[str, Any]
    wrapped: bool
    is_open: bool

    @property
    def instruction(self) -> str:
        """The schema in words, for a model whose server does not bind its answer to the schema."""
        schema = json.dumps(self.schema, ensure_ascii=False)
        return f"Give your answer as one JSON object that fits this JSON schema, with no other text:\n{schema}"

    def read(self, text: str) -> Any:
        """Return the value of an answer. A model may put text or a fence around it. Raises `Misfit`."""
        start, end = text.find("{"), text.rfind("}") + 1
        try:
            return self._unwrapped(self.adapter.validate_json(text[start:end] if 0 <= start < end else text))
        except ValidationError as error:
            if self.wrapped:  # models that only read the schema forget the object around a value
                with suppress(ValidationError):
                    return self.bare.validate_json(text.strip("` \r\n").removeprefix("json"))
            raise Misfit("; ".join(self._faults(error))) from error

    def read_partial(self, text: str) -> Any:
        """Return the value of the beginning of an answer; None if it does not fit yet."""
        start = text.find("{")
        try:
            return self._unwrapped(
                self.adapter.validate_json(text[max(0, start) :], experimental_allow_partial="trailing-strings")
            )
        except Exception:  # also a validator of the type, which may expect whole values
            return None

    def _unwrapped(self, value: Any) -> Any:
        return value.get("value") if self.wrapped else value

    def _faults(self, error: ValidationError) -> Iterator[str]:
        for fault in error.errors(include_url=False, include_context=False, include_input=False)[:MOST_FAULTS]:
            path = fault["loc"][1:] if self.wrapped else fault["loc"]
            where, said = ".".join(map(str, path)), fault["msg"].removeprefix("Value error, ")
            if fault["type"] == "json_invalid":
                yield "it is not JSON"
            elif fault["type"] == "missing":
                yield f"{where or 'value'} is missing"
            elif said.startswith("Input "):
                yield f"{where or 'it'} {said.removeprefix('Input ')}"
            else:
                yield f"{where}: {said}" if where else said


def read_output(output: Any) -> OutputType | None:
    """Return the type of the argument `output`, None for None. Raises `InputError` if no answer can have the type."""
    if output is None:
        return None
    if _is_value(output):
        raise _no_type(output)
    try:
        bare: TypeAdapter[Any] = TypeAdapter(output)
        schema = bare.json_schema()
        wrapped = schema.get("type") != "object" or "properties" not in schema
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, TypedDict)("Answer", {"value": output})) if wrapped else bare
        schema = adapter.json_schema() if wrapped else schema
        return OutputType(adapter, bare, schema, wrapped, _is_open(schema))
    except Exception as error:  # the hooks of any class can fail here
        raise _no_type(output, str(error).partition("\n")[0].partition(". ")[0]) from error


def _is_value(output: object) -> bool:
    """Return True for a function, and for an object that is no type although pydantic may take it for one."""
    is_object = is_dataclass(output) and not isinstance(output, type)
    return is_object or isinstance(output, _NO_TYPES) or inspect.isroutine(cast(object, output))


def _no_type(output: object, why: str = "") -> InputError:
    kinds = "a pydantic model, dataclass, TypedDict, enum, list[...] or a union"
    return InputError(f"output takes a type such as {kinds}, not {shown(output)}{why and f': {why}'}")


def _is_open(schema: Any) -> bool:
    """Return True if the schema has an object with keys of any name, or a value of any type."""
    if not isinstance(schema, dict):
        return schema is True
    found: dict[str, Any] = schema  # pyright: ignore[reportUnknownVariableType]
    inner = [one for name in ("properties", "$defs") for one in found.get(name, {}).values()]
    inner += [found["items"]] if "items" in found else []
    inner += [one for name in ("anyOf", "oneOf", "allOf", "prefixItems") for one in found.get(name, ())]
    typed = found.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
    return not typed or found.get("additionalProperties", False) is not False or any(map(_is_open, inner))
