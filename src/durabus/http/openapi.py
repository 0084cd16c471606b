"""How routes are described: shared parameters, documented responses, and the OpenAPI 3.1 document.

The framework provides the routes, msgspec the schemas that requests are checked with.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, get_type_hints

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.params import PathParameter, QueryParameter
from litestar.routes import HTTPRoute

from durabus import __version__
from durabus.http.auth.access import Scope
from durabus.http.problems import MEDIA_TYPE, ProblemDocument
from durabus.http.schema.fields import MAX_ID, NAME_PATTERN, TAGS_PATTERN
from durabus.model.limits import MAX_NAME_CHARS

CONFIG = OpenAPIConfig(title="durabus", version=__version__, path=None, use_handler_docstrings=True)
DESCRIPTION = "A durable event queue: publish events with tags, claim them, report how they ended."
REF = "#/components/schemas/{name}"
BEARER = {"type": "http", "scheme": "bearer", "description": "Made by `durabus tokens create`."}

MAX_PAGE = 1_000
MAX_OFFSET = 10_000

PathId = Annotated[int, PathParameter(ge=1, le=MAX_ID, description="The event's number.")]
QueryBus = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN, description="Default: the server's bus."
    ),
]
QueryTags = Annotated[
    str | None,
    QueryParameter(pattern=TAGS_PATTERN, description="Comma-separated; an event matches if it has ANY of them."),
]


class DocumentedResponse(msgspec.Struct, frozen=True):
    """A response that the return type of a handler does not describe."""

    description: str
    document: type | None = None
    """For an error: the document that may come instead of a problem document."""
    media_type: str = "application/json"


COMMON = {
    400: DocumentedResponse("The request does not match this description."),
    401: DocumentedResponse("No token, or one that is not valid."),
    403: DocumentedResponse("The token does not allow this request."),
    408: DocumentedResponse("The body took too long to arrive."),
    413: DocumentedResponse("The body, or the payload, is too large."),
    415: DocumentedResponse("The body is not JSON."),
    429: DocumentedResponse("Too many wrong tokens came from this address, and this one is wrong too."),
    431: DocumentedResponse("The address and headers are too large."),
    503: DocumentedResponse("The store or the server cannot serve the request now."),
}
WITHOUT_BODY = (400, 401, 403, 429, 431, 503)


def described(
    scope: Scope | None, responses: dict[int, DocumentedResponse], body: type[msgspec.Struct] | None = None
) -> dict[str, Any]:
    """The options of a route: the scope it needs (None: no token), its responses, and the type of its body."""
    return {"scope": scope, "responses": responses, "body": body}


def openapi_document(app: Litestar) -> dict[str, Any]:
    """The whole OpenAPI document."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    document["info"]["description"] = DESCRIPTION
    documents: set[type] = {ProblemDocument}
    for route in app.routes:
        if isinstance(route, HTTPRoute) and route.path_format in document["paths"]:
            for method, operation in document["paths"][route.path_format].items():
                documents |= _describe(operation, route.route_handler_map[method.upper()][0])
    _, schemas = msgspec.json.schema_components(sorted(documents, key=lambda one: one.__name__), ref_template=REF)
    document["components"] = {"schemas": schemas, "securitySchemes": {"token": BEARER}}
    document["security"] = [{"token": []}]
    whole: dict[str, Any] = _whole_numbers(document)
    return whole


def _describe(operation: dict[str, Any], handler: HTTPRouteHandler) -> set[type]:
    """Complete the operation of one handler. Returns the document types it refers to."""
    operation["summary"] = (inspect.getdoc(handler.fn) or "").partition(".")[0]
    operation["operationId"] = handler.handler_name
    scope = handler.opt["scope"]
    if scope is None:
        operation["security"] = []
    else:
        operation["description"] = f"{inspect.getdoc(handler.fn)}\n\nNeeds the scope `{scope}`."
    body = handler.opt["body"]
    if body is not None:
        content = {"application/json": {"schema": {"$ref": REF.format(name=body.__name__)}}}
        operation["requestBody"] = {"content": content, "required": True}
    common = {code: response for code, response in COMMON.items() if body is not None or code in WITHOUT_BODY}
    responses: dict[int, DocumentedResponse] = {} if scope is None else dict(common)
    responses |= handler.opt["responses"]
    hints = get_type_hints(handler.fn)
    found = {response.document for response in responses.values() if response.document is not None}
    for code, response in responses.items():
        operation["responses"][str(code)] = _response(code, response)
    kept = {str(code) for code in responses} | {code for code in operation["responses"] if code.startswith("2")}
    operation["responses"] = {code: response for code, response in operation["responses"].items() if code in kept}
    if body is not None:
        found.add(body)
    returned = hints["return"]
    for one in (returned, *getattr(returned, "__args__", ())):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            found.add(one)
    return found


def _response(code: int, response: DocumentedResponse) -> dict[str, Any]:
    problem = {"$ref": REF.format(name=ProblemDocument.__name__)}
    if code >= 400:  # noqa: PLR2004  (an error)
        own = [] if response.document is None else [{"$ref": REF.format(name=response.document.__name__)}]
        return {"description": response.description, "content": {MEDIA_TYPE: {"schema": {"anyOf": [*own, problem]}}}}
    if response.document is not None:
        schema: dict[str, Any] = {"$ref": REF.format(name=response.document.__name__)}
        return {"description": response.description, "content": {response.media_type: {"schema": schema}}}
    if response.media_type != "application/json":
        return {"description": response.description, "content": {response.media_type: {"schema": {"type": "string"}}}}
    return {"description": response.description}


def _whole_numbers(value: Any) -> Any:
    """Write whole floats as integers. The framework writes every limit as a float, which changes the largest ones."""
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return min(int(value), 2**63 - 1)
    return value
