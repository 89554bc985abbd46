// Runs before the first paint, and is therefore no module: a chosen theme must not flash in the other one.
"use strict";

(() => {
  const KEY = "penstock.theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };

  function stored() {
    try {
      return localStorage.getItem(KEY) in NEXT ? localStorage.getItem(KEY) : "auto";
    } catch {
      return "auto"; // Storage is forbidden in this browser: the theme follows the system.
    }
  }

  function apply(theme) {
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // The choice lasts until the page is closed.
    }
  }

  window.penstockTheme = {
    current: () => document.documentElement.dataset.theme,
    turn: () => apply(NEXT[document.documentElement.dataset.theme]),
  };
  document.documentElement.dataset.theme = stored();
})();
