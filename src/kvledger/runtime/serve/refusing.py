"""Errors as clients of OpenAI expect them: a status, and a body that says what happened and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvledger.errors import CapacityError, Error, UsageError

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["describe", "refuse", "tell_nobody", "unknown_model"]


def unknown_model(asked: str, served: str) -> UsageError:
    """Return the error that another model is asked for than the one that is served."""
    return UsageError(
        f"the model `{asked[:100]}` is not served here",
        hint=f"leave `model` out, or give its name, `{served}`",
        http_status=404,
    )


def describe(error: Error) -> dict[str, Any]:
    """Return an error as the object that bodies and events hold."""
    kind = "invalid_request_error" if _is_of_the_client(error) else "server_error"
    hint = f"; {error.hint}" if error.hint else ""
    return {"message": f"{error.message}{hint}", "type": kind, "param": None, "code": error.code}


def refuse(error: Error, *, status: int | None = None, headers: dict[str, str] | None = None) -> Response:
    """Return the response that tells an error; the status is that of its kind unless given."""
    from starlette.responses import JSONResponse

    seconds = error.attributes.get("retry_after_seconds")
    if seconds is not None:
        headers = {"Retry-After": str(seconds), **(headers or {})}
    own = int(str(error.attributes.get("http_status", 400 if _is_of_the_client(error) else 503)))
    return JSONResponse({"error": describe(error)}, status_code=status or own, headers=headers)


def tell_nobody() -> Response:
    """Return what a client that has gone would have been told."""
    return refuse(UsageError("the client has gone"), status=499)


def _is_of_the_client(error: Error) -> bool:
    return isinstance(error, UsageError | CapacityError) and "retry_after_seconds" not in error.attributes
