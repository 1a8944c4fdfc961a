"use strict";
// Numbers, sizes, times and texts as people read them: one place for saved reports and live pages. Sizes and
// durations are written as `stratus_base::text` writes them.
const formats = (() => {
  // A text without control characters, and without those that break lines or change the direction of the text
  // around them: `page::escape` replaces the same ones in HTML, and `page::showable_json` in documents.
  const HIDDEN = /[\0-\x08\x0b\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]/g;
  const shown = text => String(text).replace(HIDDEN, "\ufffd");

  const fixed = (value, places) =>
    value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  const count = value => value.toLocaleString("en-US");

  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
  const bytes = value => {
    let size = Math.abs(value),
      unit = 0;
    // Values from here on would be rounded to 1024.
    for (; size >= 1023.5 && unit < UNITS.length - 1; unit++) size /= 1024;
    const places = Number.isInteger(size) || size >= 100 ? 0 : 1;
    return `${value < 0 ? "−" : ""}${size.toFixed(places)} ${UNITS[unit]}`;
  };

  const duration = seconds => {
    const s = Math.round(seconds),
      padded = value => String(value).padStart(2, "0");
    if (seconds < 10) return `${fixed(seconds, 1)} s`;
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${padded(s % 60)} s`;
    const minutes = Math.round(s / 60);
    if (s < 172800) return `${Math.floor(minutes / 60)} h ${padded(minutes % 60)} min`;
    return `${fixed(s / 86400, 1)} d`;
  };

  // A point in time, of seconds since 1970, in UTC: to the second, or to the minute if `isShort`. Zero and
  // numbers that are no time of the calendar are unknown.
  const time = (seconds, isShort) => {
    const at = new Date(1000 * (seconds || NaN));
    if (Number.isNaN(at.getTime())) return "–";
    return at
      .toISOString()
      .slice(0, isShort ? 16 : 19)
      .replace("T", " ");
  };

  // A cell of a CSV file. Spreadsheets would compute text that begins with one of some characters.
  const csvCell = value => {
    if (typeof value === "number") return String(value);
    const text = value === null || value === undefined ? "" : String(value);
    return `"${(/^[=+@\t\r-]/.test(text) ? "'" + text : text).replaceAll('"', '""')}"`;
  };
  // The name of a file for something with a title.
  const fileName = title =>
    title
      .replace(/[^A-Za-z0-9]+/g, "-")
      .replace(/^-|-$/g, "")
      .toLowerCase();

  // Saves data as a file of that name.
  const download = (blob, name) => {
    const link = document.createElement("a"),
      address = URL.createObjectURL(blob);
    Object.assign(link, { href: address, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };

  return { shown, fixed, count, bytes, duration, time, csvCell, fileName, download };
})();
