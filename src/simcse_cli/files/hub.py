"""Say in words why the Hugging Face Hub did not give a model or a data set."""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from simcse_cli.errors import reason_of

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_HINTS: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: f"the token may have expired: {_LOG_IN}",
    HTTPStatus.FORBIDDEN: f"the token does not allow it: {_LOG_IN}",
    HTTPStatus.TOO_MANY_REQUESTS: "wait a few minutes; "
    f"with a token you may ask more often: {_LOG_IN}",
}


def hub_failure(
    error: BaseException, kind: str, name: str, revision: str | None = None
) -> tuple[str, str | None] | None:
    """Return a message and a hint for an error of the Hub or the network; None for other errors.

    ``kind`` is "model" or "dataset", ``name`` the repository on the Hub.
    """
    from huggingface_hub import errors  # takes half a second

    full_name = name
    if revision:
        full_name += f"@{revision}"
    for cause in _causes(error):
        response = cause.response if isinstance(cause, errors.HfHubHTTPError) else None

        # Problems of the repository: restricted access, no such revision, no such name.
        if isinstance(cause, errors.GatedRepoError) or "is a gated dataset" in str(cause):
            hint = f"ask on its page, then {_LOG_IN}"
            return f"access to the {kind} {name} is granted on request", hint
        if isinstance(cause, errors.RevisionNotFoundError):
            hint = "give a branch, a tag or a full commit, as its page on the Hub lists them"
            return f"the {kind} {name} has no revision {revision} on the Hugging Face Hub", hint
        if _is_unknown(cause, response):
            hint = f"check the name; a private {kind} needs a token: {_LOG_IN}"
            return f"the Hugging Face Hub has no {kind} {name}, or it is private", hint

        # Problems of the Hub, and of the connection to it.
        if response is not None:
            answer = f"{response.status_code} ({response.reason_phrase})"
            hint = _HINTS.get(response.status_code, "try again later")
            return f"the Hugging Face Hub answered {answer} when asked for {full_name}", hint
        if isinstance(cause, errors.OfflineModeIsEnabled) or "(OfflineModeIsEnabled)" in str(cause):
            what = f"{full_name} is not in the local cache, and HF_HUB_OFFLINE forbids fetching it"
            return what, None
        if type(cause).__module__.startswith("httpx"):
            unreachable = f"the Hugging Face Hub cannot be reached ({reason_of(cause)})"
            return f"{unreachable}, and {full_name} is not in the local cache", None
    return None


def _is_unknown(cause: BaseException, response: Any) -> bool:
    """Tell whether a repository does not exist or is private; the Hub may answer 401 for both."""
    if response is None:  # an error of the library ``datasets``, which is not imported here
        return type(cause).__name__ == "DatasetNotFoundError"
    # This 401 is about the token, not about the repository.
    if "Invalid credentials" in response.headers.get("X-Error-Message", ""):
        return False
    return response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and the errors that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
