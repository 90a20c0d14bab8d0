// Reads {texts, doubles, arrays} from standard input, and answers with what another implementation of RFC 8785 makes of
// them: canonical texts and their SHA-256 for the JSON texts, texts for the bits of doubles, SHA-256 for the arrays.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import canonicalize from "canonicalize";

const sha256 = (text) => createHash("sha256").update(text, "utf8").digest("hex");
const double = (bits) => Buffer.from(bits, "hex").readDoubleBE(0);

const asked = JSON.parse(readFileSync(0, "utf8"));
const canonical = asked.texts.map((text) => canonicalize(JSON.parse(text)));
const answer = {
  canonical,
  hashes: canonical.map(sha256),
  doubles: asked.doubles.map((bits) => canonicalize(double(bits))),
  arrays: asked.arrays.map((array) => sha256(canonicalize(array))),
};
process.stdout.write(JSON.stringify(answer));
