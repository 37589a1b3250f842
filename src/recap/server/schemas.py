"""What goes in and comes out, and with it the OpenAPI description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from recap.alignment.mapping import METHODS
from recap.batch.tags import TAG_SCORE
from recap.selection import RULES
from recap.types import UNSURE_BELOW, Caption

Text = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"\S")]
"""A caption somebody sends."""

if TYPE_CHECKING:
    Method: TypeAlias = str
    Selection: TypeAlias = str
else:  # names that are known at run time
    Method = Literal[METHODS]
    Selection = Literal[RULES.names()]


class ProblemBody(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[dict[str, str]] | None = None
    error: str | dict[str, str | None] | None = Field(None, description="The same for clients of other services.")


class Form(BaseModel):
    """The fields of a form, apart from its pictures."""

    model_config = ConfigDict(extra="forbid")


class CaptionForm(Form):
    """How pictures are captioned; what is left out is as the pack has it."""

    k: int | None = Field(None, ge=1, le=100, description="How many retrieved captions are evidence.")
    pool: int | None = Field(None, ge=1, le=300, description="How many retrieved captions may become the caption.")
    temperature: float | None = Field(None, ge=0, le=5, description="Of the language model; 0 is greedy.")
    samples: int | None = Field(None, ge=1, le=50, description="How many candidates the language model writes.")
    seed: int | None = Field(None, ge=0, le=2**31 - 1, description="Of the language model's sampling.")
    candidates: Literal["lm", "retrieved", "both"] | None = Field(None, description="Where candidates come from.")
    selection: Selection | None = Field(None, description="How one of them is chosen.")
    method: Method | None = Field(None, description="The map from pictures to captions.")
    exclude: list[Text] = Field([], max_length=200, description="Captions that must not be evidence.")

    def settings(self) -> tuple[tuple[str, Any], ...]:
        """Return the settings that were given, in a form that can be compared."""
        given = self.model_dump(exclude={"exclude"}, exclude_none=True)
        return tuple(sorted(given.items()))


class RetrieveForm(Form):
    """What is retrieved."""

    k: int = Field(13, ge=1, le=100, description="How many captions.")
    aligned: bool = Field(True, description="False where image and text encoder share a space; see /v1/packs.")
    method: Method | None = Field(None, description="The map from pictures to captions.")


class ScoreForm(Form):
    """The captions that are judged."""

    caption: list[Text] = Field(min_length=1, max_length=50, description="Captions to judge against the picture.")
    reference: list[Text] = Field([], max_length=50, description="What people wrote about the picture.")
    method: Method | None = Field(None, description="The map from pictures to captions.")


class TagForm(Form):
    """Which keywords are kept."""

    min_score: float = Field(TAG_SCORE, ge=0, le=1, description="Least score of a keyword.")


class MapForm(Form):
    """What is drawn."""

    k: int = Field(50, ge=3, le=300, description="How many captions.")
    method: Method | None = Field(None, description="The map from pictures to captions.")


class EvidenceBody(BaseModel):
    """A caption of the datastore that was retrieved for a picture."""

    text: str
    similarity: float
    source: str
    synthetic: bool
    image_id: str


class CandidateBody(BaseModel):
    """A sentence that might have become the caption."""

    text: str
    score: float
    cosine: float
    origin: Literal["lm", "retrieved"]
    logprob: float | None


class CaptionBody(BaseModel):
    """A caption with its reasons, as ``recap caption --json`` prints it."""

    caption: str
    score: float
    confidence: float | None
    unsure: bool = Field(
        description=f"Whether the caption is probably wrong: its confidence is less than {UNSURE_BELOW}."
    )
    selection: str
    evidence: list[EvidenceBody]
    candidates: list[CandidateBody]

    @classmethod
    def of(cls, caption: Caption) -> CaptionBody:
        """Return the body for a caption."""
        return cls.model_validate(caption.as_dict())


class PictureResult(BaseModel):
    """What became of one picture: a result, or the reason why there is none."""

    index: int
    name: str
    result: CaptionBody | None = None
    error: str | None = None


class CaptionResponse(BaseModel):
    """One result for each picture, in their order."""

    results: list[PictureResult]


class RetrieveResponse(BaseModel):
    """The nearest captions, best first."""

    name: str
    aligned: bool
    evidence: list[EvidenceBody]


class ScoreBody(BaseModel):
    """How well a caption fits."""

    caption: str
    cosine: float = Field(description="The aligned cosine of caption and picture.")
    aclip_s: float = Field(description="aCLIP-S: the aligned cosine, clipped at zero.")
    refaclip_s: float | None = Field(None, description="RefaCLIP-S, where there are references.")


class ScoreResponse(BaseModel):
    """Scores in the order of the captions."""

    name: str
    method: str
    scores: list[ScoreBody]


class TagBody(BaseModel):
    """A keyword."""

    text: str
    score: float


class TagResponse(BaseModel):
    """Keywords, best first."""

    name: str
    tags: list[TagBody]


class SearchQuery(BaseModel):
    """What is searched for."""

    model_config = ConfigDict(extra="forbid")

    text: Text
    k: int = Field(20, ge=1, le=100, description="How many pictures.")


class FoundPicture(BaseModel):
    """A picture that fits the text."""

    id: int = Field(description="GET /v1/search/ID is its thumbnail.")
    name: str = Field(description="Its path below the folder.")
    similarity: float = Field(description="The aligned cosine of text and picture.")


class SearchResponse(BaseModel):
    """The pictures that fit best, best first."""

    text: str
    total: int = Field(description="How many pictures were searched.")
    results: list[FoundPicture]


class Point(BaseModel):
    """A place on the map."""

    x: float
    y: float


class MapBody(BaseModel):
    """The picture and the captions around it, in the two directions in which they differ most."""

    picture: Point
    captions: list[Point]
    explained: float = Field(description="The share of their variance that the two directions have.")


class MapResponse(BaseModel):
    """The same captions before and after alignment."""

    name: str
    evidence: list[EvidenceBody]
    aligned: MapBody
    unaligned: MapBody | None = Field(description="None where the encoders share no space.")


class NewCaption(BaseModel):
    """A caption for the datastore."""

    model_config = ConfigDict(extra="forbid")

    text: Text
    source: str = Field("", max_length=200)
    image_id: str = Field("", max_length=200)
    synthetic: bool = False


class NewCaptions(BaseModel):
    """Captions for the datastore."""

    model_config = ConfigDict(extra="forbid")

    captions: list[NewCaption] = Field(min_length=1, max_length=100)


class StoredCaption(BaseModel):
    """A caption of the datastore."""

    id: int
    text: str
    source: str
    synthetic: bool
    image_id: str


class DatastorePage(BaseModel):
    """Some of the captions that were asked for."""

    total: int = Field(description="How many there are.")
    captions: list[StoredCaption]


class FoundCaption(StoredCaption):
    """A caption near to a text."""

    similarity: float


class DatastoreHits(BaseModel):
    """The captions nearest to a text."""

    captions: list[FoundCaption]


class DatastoreChange(BaseModel):
    """What a change has done."""

    ids: list[int]
    size: int = Field(description="How many captions there are now.")
    saved: bool = Field(description="Whether the pack on disk was changed too.")


class LimitsBody(BaseModel):
    """What the service takes."""

    bytes: int
    pixels: int
    pictures: int
    urls: bool
    search: int | None = Field(description="How many pictures can be searched; null without recap serve --search.")


class PackBody(BaseModel):
    """The pack that is served."""

    name: str
    encoder: str
    method: str
    methods: list[str]
    shares_space: bool = Field(description="Whether pictures and captions can be compared without alignment.")
    captions: int
    sources: dict[str, int]
    language_model: str | None
    calibrated: bool
    settings: dict[str, Any]
    about: dict[str, Any]


class PacksResponse(BaseModel):
    """What is served, by which version, within which limits."""

    version: str
    editable: bool
    limits: LimitsBody
    packs: list[PackBody]


class Health(BaseModel):
    """Whether the service is there."""

    status: Literal["ok"]
    version: str
