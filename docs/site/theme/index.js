import DefaultTheme from "vitepress/theme-without-fonts";
import "./site.css";

/**
 * The default theme nests the button of a sidebar's group in another, makes buttons of headings that open nothing, and has the
 * keys of the search button beside its name: screen readers get one control for each, with its state.
 */
function describeControls(element) {
  if (element?.classList?.contains("VPSidebarItem")) {
    const heading = element.querySelector(":scope > .item[role=button]");
    const caret = heading?.querySelector(":scope > .caret");
    if (heading && !caret) {
      heading.removeAttribute("role");
      heading.removeAttribute("tabindex");
    } else if (heading) {
      heading.setAttribute("aria-expanded", String(!element.classList.contains("collapsed")));
      caret.removeAttribute("role");
      caret.removeAttribute("tabindex");
      caret.setAttribute("aria-hidden", "true");
    }
  }
  if (element?.classList?.contains("DocSearch-Button")) {
    const key = element.querySelector(".DocSearch-Button-Key:last-child");
    if (key) key.textContent = ""; // site.css draws it: the name of the button is its visible text
  }
}

export default {
  extends: DefaultTheme,
  enhanceApp({ app }) {
    app.mixin({
      mounted() {
        describeControls(this.$el);
      },
      updated() {
        describeControls(this.$el);
      },
    });
  },
};
