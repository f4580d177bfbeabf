"""Texts that act on a page if they become part of it."""

# ruff: noqa: E501

HOSTILE = (
    "<meta http-equiv=refresh content='0;url=/LEAK'>",
    "<base href='http://elsewhere.invalid/'>",
    "<link rel=stylesheet href='/LEAK'><link rel=prefetch href='/LEAK'><link rel=preconnect href='http://elsewhere.invalid'>",
    "<style>@import '/LEAK'; @import url(/LEAK); @font-face{font-family:f;src:url(/LEAK)} *{background:url(/LEAK)}</style>",
    "<p style='position:fixed;inset:0;z-index:99999;background:red url(/LEAK)'>cover</p>",
    "<form action='/LEAK' method=post target=_top><input autofocus onfocus=this.form.submit()><button>go</button></form>",
    "<button formaction='/LEAK'>go</button><input type=submit formaction='/LEAK'><isindex action='/LEAK'>",
    "<iframe src='/LEAK'></iframe><iframe srcdoc='<img src=/LEAK><script>parent.broken=1</script>'></iframe>",
    "<object data='/LEAK'></object><embed src='/LEAK'><applet code='/LEAK'></applet><portal src='/LEAK'></portal>",
    "<svg><use href='/LEAK#a'/><use xlink:href='/LEAK#a'/><image href='/LEAK'/><feImage href='/LEAK'/></svg>",
    "<svg><a><animate attributeName=href to='javascript:window.broken=1' begin=0s /><set attributeName=href to='/LEAK'/></a></svg>",
    "<svg onload=window.broken=1><script href='/LEAK'></script><style>@import '/LEAK'</style></svg>",
    "<math href='/LEAK'><mtext href='javascript:window.broken=1'>x</mtext><maction actiontype=statusline xlink:href='/LEAK'>y</maction></math>",
    "$\\\\href{javascript:window.broken=1}{x} \\\\includegraphics{/LEAK} \\\\htmlStyle{position:fixed;inset:0}{x}$",
    "<a href='data:text/html,<script>opener.broken=1</script>' target=_top>data</a> [b](blob:/LEAK) [d](data:text/html,x)",
    "<dialog open style='position:fixed;inset:0'>cover</dialog><div popover=manual id=p>x</div><details open ontoggle=window.broken=1>x</details>",
    "<video autoplay src='/LEAK'><source src='/LEAK'><track default src='/LEAK'></video><audio autoplay src='/LEAK'></audio>",
    "<template shadowrootmode=open><img src='/LEAK'></template><noscript><img src='/LEAK'></noscript><plaintext>",
)
"""HTML that would request, submit or cover something, if it became part of a page."""
