// The page: every module that each visit needs. What comes first hears a key or a click first.
import "./prompts.js";
import "./network.js";
import "./composer.js";
import "./chats.js";
import "./live.js";
import "./keyboard.js";
import "./options.js";
import "./settings.js";
import "./attachments.js";
import "./toasts.js";
