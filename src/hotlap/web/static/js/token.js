// Asking for the token of a service that wants one: one question, whoever needs the answer.

import { byId } from "./dom.js";
import { Refused, setTokenAsker } from "./service.js";
import { word } from "./words.js";

/** The token that the user gives; `again` says that the one before was wrong. */
function askForToken(again) {
  const dialog = byId("tokenDialog");
  byId("tokenWrong").hidden = !again;
  byId("token").value = "";
  dialog.showModal();
  return new Promise((given, refused) => {
    dialog.addEventListener("close", () => {
      const token = byId("token").value.trim();
      if (dialog.returnValue === "ok" && token) given(token);
      else refused(new Refused(401, word("token.needed"), 0));
      dialog.returnValue = "";
    }, { once: true });
  });
}

export const startToken = () => setTokenAsker(askForToken);
