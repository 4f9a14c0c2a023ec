"""The JSON bodies of a server's answers, with their OpenAPI documentation."""

from pydantic import BaseModel, Field


class Reply(BaseModel):
    """The smoothed classifier's answer for one picture.

    With probability at least 1 - alpha over the noise of this picture, the smoothed classifier
    answers `label` for every picture within the l2 distance `radius` of this one.
    """

    abstained: bool = Field(description="Whether no class is certain; label and name are null then")
    label: int | None = Field(description="The class: the place of its output, from 0")
    name: str | None = Field(description="The name of the class")
    radius: float = Field(
        ge=0, description="Certified l2 radius, pixels in [0, 1], rounded down; 0 when abstaining"
    )
    p_A: float = Field(
        ge=0, le=1, description="Lower bound of the class's probability under noise, rounded down"
    )
    n_A: int = Field(ge=0, description="Draws for the class among the n that bound its probability")
    n: int = Field(ge=0, description="Draws after the selection of the class")
    draws: int = Field(ge=0, description="All draws, with those that selected the class")
    stop: str = Field(
        description="Why drawing stopped: `certified` or `futile` (more draws would change little),"
        " `n` (all draws were made), `budget` (the time was up)"
    )
    sigma: float = Field(gt=0, description="Standard deviation of the noise, pixels in [0, 1]")
    alpha: float = Field(gt=0, lt=1, description="Probability that this answer's claim is false")
    seed: str = Field(
        pattern=r"^\d{1,20}$",
        description="Of the noise; a decimal below 2^64, as text because many readers of JSON "
        "round such numbers",
    )
    resized_from: tuple[int, int] | None = Field(
        description="Width and height of the picture that was sent, if it was scaled or cut; the "
        "radius is about the pixels that it became"
    )
    seconds: float = Field(ge=0, description="From the arrival of the request")
    model: str = Field(description="The name of what is served")
    weights: str = Field(description="SHA-256 of the weights")


class Health(BaseModel):
    """The state of the server."""

    ready: bool = Field(description="Whether a picture sent now would find a place")
    waiting: int = Field(ge=0, description="Requests whose picture arrives, or waits for a thread")
    computing: int = Field(ge=0, description="Requests that are being computed")


class Problem(BaseModel):
    """Why there is no answer, in one line."""

    detail: str
